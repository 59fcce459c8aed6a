"""A shop whose actions flows of the tests put together."""

from __future__ import annotations

import holdfast as hf


def a_shop() -> hf.App:
    """A new app each time: flows are registered once per name."""
    app = hf.App("shop")

    @app.action
    def extract(day: str, what: str = "orders") -> dict:
        return {"rows": [1, 2, 3], "count": 3, "ok": True, "what": what, "day": day}

    @app.action
    async def double(ctx: hf.Context, x: int) -> int:
        return 2 * x

    @app.action
    def add(numbers: list, bonus: int = 0) -> dict:
        return {"sum": sum(numbers) + bonus}

    @app.action
    def publish(report: dict, title: str = "") -> str:
        return f"{title}{report['sum']}"

    @app.action
    def anything(**given: object) -> dict:
        return given

    return app
