"""Run workers as the command line does: APP PROCESSES SLOTS LOOPS, settings from the environment."""

from __future__ import annotations

import logging
import os
import sys

from holdfast.settings.settings import Settings
from holdfast.worker.supervisor.supervisor import run_workers

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s[%(process)d] %(message)s")
    app_ref, processes, slots, loops = sys.argv[1:]
    settings = Settings.load(os.environ)
    code = run_workers(
        app_ref, settings, processes=int(processes), slots=int(slots), queues=None, loops=loops == "loops"
    )
    sys.exit(code)
