"""What is made of results: summaries, and the page."""

import math
import re
from dataclasses import asdict

import pytest
from benchmarks import (
    comparisons,
    measure,
    recorded,
    report,
    report_batches,
    report_cpu,
    report_pictures,
    report_summary,
    results,
)
from benchmarks.cases import Gemm
from benchmarks.machine import Machine


def rendered(documents):
    return "\n".join(report_cpu.chapter(documents))


def document(ratios, *, kind="gemm", threads=1):
    """A document whose subject has these ratios to the peer `a`, and half of them to `b`."""
    cases = []
    for m, ratio in enumerate(ratios, start=1):
        case = Gemm("made-up", m, 8, 8)
        engines = {
            name: {"min_s": s, "median_s": 2 * s, "rounds": 5, "calls_per_burst": 3}
            | {"fraction_of_peak": 0.5, "fraction_of_bound": 0.75, "paired": s / 1e-6}
            | {"fraction_of_peak_paired": 0.25, "fraction_of_bound_paired": 0.375}
            for name, s in (("ftuner", 1e-6), ("a", ratio * 1e-6), ("b", 2 * ratio * 1e-6))
        }
        entry = {"case": asdict(case), "label": case.label, "flops": case.flops}
        cases.append(entry | {"engines": engines} | results.compare(engines, "ftuner"))
    here = Machine("Some CPU", "x86_64", "Linux", 2, {"L1": 1 << 15})
    return measure.header(kind, "made-up", threads, here) | {"cases": cases, "settings": {}}


def test_geomean():
    assert results.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(results.geomean([]))


def test_ratio_is_to_the_best_peer():
    engines = {
        "ftuner": {"min_s": 2.0, "median_s": 4.0, "paired": 1.0},
        "a": {"min_s": 3.0, "median_s": 9.0, "paired": 1.4},
        "b": {"min_s": 5.0, "median_s": 6.0, "paired": 1.25},
        "c": {"refused": "wrong"},
    }
    expected = {"best_peer": "a", "ratio": 1.5, "ratio_median": 1.5, "ratio_paired": 1.25}
    assert results.compare(engines, "ftuner") == expected
    assert results.compare({"a": engines["a"]}, "ftuner")["ratio"] is None
    assert results.compare({"ftuner": engines["ftuner"]}, "ftuner")["best_peer"] is None


def test_convolutions_are_shown_by_layer_and_first_calls_by_picture():
    convs = document([2.0, 8.0], kind="conv")
    for case, label in zip(convs["cases"], ("3x3 8>8 7x7", "3x3 8>8 9x9"), strict=True):
        case["label"] = label
    first = {k: v for k, v in convs.items() if k not in ("cases", "settings")} | {"kind": "first"}
    first["cases"] = [{"label": "1x96x96", "first_s": 3e-3, "tenth_s": 2e-3}]
    generated = rendered([convs, first])
    assert "| 3x3 8>8 | 4.00 |" in generated
    assert "| made-up, 1 thread | 1x96x96 | 1.50 | 1.00 ms |" in generated


def test_summary_counts_and_sorts():
    summary = results.summarise(document([2.0, 0.5, 0.8]))
    assert (summary.cases, summary.wins) == (3, 1)
    assert [label for label, _, _ in summary.losses] == ["2x8x8", "3x8x8"]
    assert summary.worst == summary.losses[0]
    assert summary.geomean == pytest.approx(0.8 ** (1 / 3))
    assert summary.geomean_paired == pytest.approx(0.8 ** (1 / 3))
    assert summary.least_paired == ("2x8x8", pytest.approx(0.5))
    assert summary.ratios == pytest.approx((0.5, 0.8, 2.0))
    assert summary.per_peer["b"] == pytest.approx(2 * summary.per_peer["a"])
    assert summary.fraction_of_peak == pytest.approx(0.5)


def test_a_foreign_schema_is_refused(tmp_path):
    path = tmp_path / "old.json"
    results.save({"schema": 0}, path)
    with pytest.raises(ValueError, match="schema"):
        results.load(path)


@pytest.fixture
def root(tmp_path):
    """A repository whose pages have markers, and a page of a machine that is gone."""
    folder = tmp_path / "root"
    (folder / "docs" / "performance").mkdir(parents=True)
    (folder / "docs" / "performance" / "gone.md").write_text("gone")
    for page in report.PAGES:
        text = f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"
        (folder / page).write_text(text)
    return folder


def pages(root):
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_report_is_idempotent_and_lists_losses(tmp_path, root):
    folder = tmp_path / "results"
    results.save(document([2.0, 0.5]) | {"set": "mlp"}, folder / "A B" / "one.json")
    results.save(document([1.5], kind="bmm", threads=2), folder / "old" / "two.json")
    results.save({"kind": "something else"}, folder / "A B" / "other.json")
    about = 'title = "Old CPU"\npage = "old-cpu"\nstate = "It lacked much."\n'
    (folder / "old" / recorded.ABOUT).write_text(about)
    report.main(folder, root)
    once = pages(root)
    report.main(folder, root)
    assert pages(root) == once
    assert set(once) == {
        *report.PAGES, "docs/performance/a-b.md", "docs/performance/old-cpu.md", "docs/zoo.md",
    }  # fmt: skip
    for page in report.PAGES:
        assert once[page].startswith("before\n")
        assert once[page].endswith("\n\nafter\n")
        assert "\nold\n" not in once[page]
    assert "| 2x8x8 | a | 0.50 |" in once["docs/performance/a-b.md"]
    assert "bmm made-up" in once["docs/performance/old-cpu.md"]
    assert "earlier version of ftuner.** It lacked much." in once["docs/performance/old-cpu.md"]
    row = "| dense layers, by rows | 2 | 1.00 | – | 1 of 2 | 0.50 (2x8x8, a) |"
    assert row in once["docs/performance.md"]
    assert "- [Old CPU](performance/old-cpu.md): It lacked much." in once["docs/performance.md"]
    assert "| dense layers, by rows | Some CPU | 2 | 1.00 | – | 1 of 2 |" in once["README.md"]
    assert "Old CPU" not in once["README.md"]


def test_versions_are_ordered(tmp_path):
    for name, date, about in (
        ("new", "2026-02-02", ""), ("newer", "2026-03-03", ""), ("old", "2026-04-04", 'state = "x"')
    ):  # fmt: skip
        results.save(document([1.0]) | {"date": date}, tmp_path / name / "one.json")
        (tmp_path / name / recorded.ABOUT).write_text(about)
    (tmp_path / "empty").mkdir()
    assert [m.page for m in recorded.read_recorded(tmp_path)] == ["newer", "new", "old"]


def sized(sizes, ratio, name):
    """A document of a vision network at square sizes."""
    made = document([ratio] * len(sizes), kind="vision") | {"set": name}
    for result, size in zip(made["cases"], sizes, strict=True):
        result["case"] = {"batch": 1, "height": size, "width": size}
    return made


def test_pictures_have_the_networks_of_every_common_resolution():
    documents = [sized((96, 224), 2.0, "a"), sized((96, 224), 8.0, "b"), sized((96, 32), 9.0, "c")]
    networks, ratios = report_pictures.by_resolution(documents)
    assert networks == ["a", "b"]
    assert ratios["a"] == {size: pytest.approx([2.0, 8.0]) for size in (96, 224)}
    assert ratios["b"][96] == pytest.approx([4.0, 16.0])


def test_pictures_are_drawn_and_those_of_the_past_removed(tmp_path, root):
    encoder = document([2.0, 3.0], kind="model", threads=2) | {"set": "minilm"}
    for result, length in zip(encoder["cases"], (7, 33), strict=True):
        result["case"] = {"batch": 1, "length": length}
        result |= {"first_s": 2e-3, "tenth_s": 1e-3}
    folder = tmp_path / "results"
    results.save(encoder, folder / "here" / "model.json")
    results.save(sized((96, 224), 2.0, "a"), folder / "here" / "vision.json")
    (root / "docs" / "performance" / "gone.svg").write_text("gone")
    report.main(folder, root)
    drawn = sorted(p.name for p in root.rglob("*.svg"))
    assert drawn == ["here-length.svg", "here-resolution.svg"]
    text = (root / "docs" / "performance.md").read_text()
    assert "![Sentence encoder on Some CPU, 2 threads, batch 1](performance/here-length" in text
    assert "![1 vision networks on Some CPU, 1 thread, batch 1](performance/here-res" in text


def test_report_by_rows():
    generated = rendered([document([2.0, 3.0]) | {"set": "mlp"}])
    assert (
        "| m | ratio, 1 thread | share of peak, 1 thread | share of bound, 1 thread |" in generated
    )
    assert "| 2 | 3.00 | 0.50 / 0.25 | 0.75 / 0.38 |" in generated


def test_report_of_shares_that_were_not_paired():
    made = document([2.0]) | {"set": "mlp"}
    own = made["cases"][0]["engines"]["ftuner"]
    del own["fraction_of_peak_paired"], own["fraction_of_bound_paired"]
    assert "| 1 | 2.00 | 0.50 | 0.75 |" in rendered([made])


def test_report_of_searches():
    made = document([1.0], kind="metaschedule")
    made["cases"][0]["engines"]["metaschedule"] = {"min_s": 3e-6, "median_s": 3e-6}
    made["cases"][0]["tuning_s"] = 120.0
    made |= {"ftuner_tuning_s": 2.0, "settings": {"trials": 64}}
    assert "| 1x8x8 | 60.00 | 3.00 |" in rendered([made])


def test_report_of_int8_weights():
    made = document([1.0], kind="int8")
    seconds = {"ftuner, int8": 2e-6, "ftuner, float32": 6e-6, "other": 3e-6}
    timings = {name: {"min_s": s, "median_s": s} for name, s in seconds.items()}
    made["cases"] = [{"rows": 4, "engines": timings}]
    assert "| 4 | 3.00 | 1.50 |" in rendered([made])


def test_other_forms_are_compared_with_peers_alone():
    """Other ways of ftuner's are no peers."""
    ragged = {"kind": "ragged", "cases": [{"lengths": "mnli", "batch": 8, "seconds": {
        "ftuner, batches": 2.0, "ftuner, one by one": 1.0, "a, padded": 5.0, "a, sorted": 3.0,
    }}]}  # fmt: skip
    times = {
        name: {"min_s": s, "median_s": s}
        for name, s in (("bfloat16 ftuner", 2.0), ("bfloat16 b", 1.0), ("int8-dynamic ftuner", 1.0),
                        ("int8-dynamic a", 3.0), ("float32 ftuner", 0.5))
    }  # fmt: skip
    layers = {"kind": "precisions", "cases": [{"rows": 5, "k": 7, "n": 9, "engines": times}]}
    engines = {
        name: {"min_s": s, "median_s": s}
        for name, s in (("ftuner", 2.0), ("ftuner-onnx", 1.0), ("eager", 8.0))
    }
    modules = {"kind": "torch-modules", "results": [
        {"label": "net", "cases": [{"label": "1x3", "engines": engines}]}, {"crashed": "why"},
    ]}  # fmt: skip
    found = [*comparisons.compared([ragged, layers, modules])]
    seen = [(c["label"], c["best_peer"], c["ratio"]) for d in found for c in d["cases"]]
    assert seen == [
        ("mnli, batches of 8", "a, sorted", 1.5), ("5x7x9", "b", 0.5), ("5x7x9", "a", 3.0),
        ("net 1x3", "eager", 4.0),
    ]  # fmt: skip


def test_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        report.replace_between_markers("no markers here", iter(["generated"]))


def test_the_pages_are_what_the_results_say():
    machines = recorded.read_recorded(report.RESULTS)
    folder = report.ROOT / "docs" / "performance"
    written = {path.name: path.read_text() for path in folder.glob("*.md")}
    assert written == {f"{machine.page}.md": report.page(machine) for machine in machines}
    readme = (report.ROOT / "README.md").read_text()
    assert report.replace_between_markers(readme, report_summary.front(machines)) == readme
    batches = (folder.parent / "batches.md").read_text()
    assert report.replace_between_markers(batches, report_batches.speed(machines)) == batches
    page = (folder.parent / "performance.md").read_text()
    pictures = [(name, text) for text, name in re.findall(r"!\[(.*)\]\(performance/(.*)\)", page)]
    summary = report_summary.performance(machines, pictures)
    assert report.replace_between_markers(page, summary) == page
    assert {name for name, _ in pictures} == {path.name for path in folder.glob("*.svg")}


def test_batches_are_compared_with_the_fastest_peer_of_each_way():
    seconds = {
        "ftuner, batches": 0.5, "ftuner, one by one": 0.8, "a, padded": 2.0, "b, padded": 1.5,
        "a, padded, sorted": 1.0, "b, padded, sorted": 1.0, "a, one by one": 0.7,
        "b, one by one": 0.6,
    }  # fmt: skip
    case = {"lengths": "few", "batch": 8, "tokens": 2000, "padded": 3000, "sorted": 2200}
    one = {"batch": 9, "sorted": 3000, "seconds": seconds}
    found = document([], kind="ragged") | {"cases": [case | {"seconds": seconds}, case | one]}
    answered = {"all_s": 0.5, "p50_s": 0.01, "p99_s": 0.03}
    many = {"lengths": "few", "clients": 64, "tokens": 2000, "ways": {"ftuner": answered}}
    (compared,) = comparisons.compared([found])
    clients = document([], kind="clients") | {"cases": [many]}
    machine = recorded.Recorded("Some CPU", "some-cpu", "", (compared, clients))
    lines = [*report_batches.speed([machine])]
    assert lines[0] == "Some CPU, 1 thread:"
    assert lines[4] == "| made-up | few | 8 | 1.50 | 1.10 | 4.0 | 3.00 | 2.00 | 1.20 | 1.60 |"
    assert lines[5] == "| made-up | few | 9 | 1.50 | 1.50 | 4.0 | 3.00 | – | 1.20 | 1.60 |"
    assert "- padded, geometric means: 3.00; a 4.00, b 3.00" in lines
    assert "- ftuner, one by one: 1.60" in lines
    assert lines[-2] == "| few | 64 | ftuner | 4.0 | 10 | 30 |"


def test_the_page_is_short():
    assert len((report.ROOT / "docs" / "performance.md").read_text().splitlines()) <= 100
