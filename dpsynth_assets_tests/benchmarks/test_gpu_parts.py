"""Parts of benchmarks/gpu.py: what one does to itself harms no other, and what was told is kept."""

import time

from on_a_gpu.parts import Part, run_parts


def test_a_part_that_fails_or_hangs_leaves_its_records_and_the_next_part(tmp_path):
    def fails(device, tell):
        tell(before=device)
        raise ValueError("no such kernel")

    def hangs(device, tell):
        tell(before=device)
        time.sleep(60)

    parts = [Part("a", 9, fails), Part("b", 0.3, hangs), Part("c", 9, lambda _, tell: tell(ok=1))]
    found = run_parts(parts, "cpu", tmp_path / "out.jsonl", 30)
    assert [each["part"] for each in found if "before" in each or "ok" in each] == ["a", "b", "c"]
    assert "no such kernel" in next(each["error"] for each in found if "error" in each)
    assert [each.get("failed", "")[:7] for each in found if "took_s" in each] == [
        "exit st",
        "stopped",
        "",
    ]
