"""The price of an order."""


def price(items: list[float], discount: float = 0.0) -> dict[str, float]:
    return {"total": round(sum(items) * (1 - discount), 2)}
