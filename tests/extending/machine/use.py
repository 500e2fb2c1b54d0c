from pathlib import Path

import ftuner

plan = ftuner.explain(77, 768, 768, hardware=Path(__file__).parent / "raspberry_pi_5.toml")
print(plan.isa.name, plan.estimate.bound, f"{plan.estimate.seconds * 1e3:.2f} ms")
for patch in plan.patches():
    print(patch.worker, patch.kernel, patch.rows, patch.columns)

assert plan.isa.name == "neon"
assert {patch.worker for patch in plan.patches()} == {0, 1, 2, 3}
