"""The receiver of the page about webhooks does what it says."""

from __future__ import annotations

import re
import time
from pathlib import Path

from holdfast.webhooks import signed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks.md").read_text()
SECRET = re.search(r"whsec_[\w+/=]+", PAGE)[0]


def test_the_receiver_of_the_page_believes_drops_and_refuses():
    page: dict = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], page)
    receive, body = page["receive"], b"{}"
    given = signed("evt_1", int(time.time()), body, [SECRET])
    assert [receive(given, body), receive(given, body), receive(given, b"[]")] == [204, 200, 401]
