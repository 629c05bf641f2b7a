"""Records of the parts as a table in Markdown."""


def markdown(records: list[dict]) -> str:
    """One line a record, in the order in which they were told."""
    lines = ["| part | measured |", "|---|---|"]
    for record in records:
        figures = {key: value for key, value in record.items() if key not in ("part", "took_s")}
        if figures:
            lines.append(
                f"| {record['part']} | {', '.join(_told(*each) for each in figures.items())} |"
            )
    return "\n".join(lines)


def _told(name: str, value: object) -> str:
    if isinstance(value, dict):
        return f"{name}: " + ", ".join(_told(*each) for each in value.items())
    return f"{name.replace('_', ' ')} {_number(value)}"


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
