"""Members of chains on a CPU: steps that have work where their chain is not walked by stripes."""

from __future__ import annotations

from dataclasses import replace

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.cpu.step_kind import (
    CompiledStep,
    Extents,
    Loaded,
    RequiredFamilies,
    StepKind,
    StepReport,
    kind_of,
    no_cost,
)
from ftuner.schedules.depthwise.step import DepthwiseStep
from ftuner.schedules.product.step import ProductStep
from ftuner.schedules.stripes.cpu_binding import compiled_chain, stripes_at, walked
from ftuner.schedules.stripes.cpu_plan import StripesPlanner
from ftuner.schedules.stripes.step import WholeStep


@dataclass(frozen=True)
class CompiledMember(CompiledStep):
    """A compiled step, and what decides whether it has work."""

    step: WholeStep
    member: CompiledStep
    planner: StripesPlanner

    @property
    def weight_panels(self) -> tuple[int, int]:
        return self.member.weight_panels

    def lay_out(self, records: RecordLayout, at: int) -> None:
        with records.unless(walked(self.step.stripes, self.planner, records.dims)):
            self.member.lay_out(records, at)


class WholeKind(StepKind[WholeStep]):
    """A member of a chain is a step of its own kind."""

    has_workspace = True

    def required_families(
        self, step: WholeStep, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies | None:
        return kind_of(step.step).required_families(step.step, hardware, isa, workers)

    def multiplied(self, step: WholeStep) -> DType | None:
        return kind_of(step.step).multiplied(step.step)

    def bundle(self, step: WholeStep, hardware: CpuHardware, isa: Isa) -> Bundle | None:
        return kind_of(step.step).bundle(step.step, hardware, isa)

    def compiled(
        self, step: WholeStep, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledMember:
        member = kind_of(step.step).compiled(step.step, required, kernel, loaded)
        assert isinstance(member.step, (ProductStep, DepthwiseStep))
        stripes, planner = compiled_chain(step.stripes, loaded)
        own = replace(step, step=member.step, stripes=stripes)
        return CompiledMember(own, member, planner)

    def report(
        self, step: WholeStep, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        if stripes_at(step.stripes, extents, machine) is not None:
            found = StepReport("nothing: the chain is walked by stripes", no_cost(machine))
        else:
            found = kind_of(step.step).report(step.step, extents, machine, resident_bytes)
        return found._replace(kind=step.step.kind)


KIND = WholeKind()
