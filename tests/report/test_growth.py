"""What is appended and what is copied, in a few words."""

from ftuner.report.growth import NAMED, growth_facts


def test_nothing_is_said_of_a_model_without_pasts() -> None:
    assert growth_facts({}, {}) == {}


def test_names_are_together_by_reason_and_not_too_many() -> None:
    appended = {f"past{n}": f"present{n}" for n in range(NAMED + 2)}
    found = growth_facts(appended, {"a": "why", "b": "because", "c": "why"})
    assert found["appended in place"].startswith("present0 to past0, present1 to past1, ")
    assert found["appended in place"].endswith(f"present{NAMED - 1} to past{NAMED - 1} and 2 more")
    assert found["copied"] == "a, c (why); b (because)"
