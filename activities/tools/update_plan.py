"""`update_plan` states the whole plan; what it says becomes part of the session's state (spec ONT-4)."""

from __future__ import annotations

from typing import get_args

from activities.tools.arguments import schema
from activities.tools.cited import checked_size
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.model.state import Plan, PlanStatus, PlanStep, StatePatch, StepStatus
from salience.model.tool import ToolSpec

MAX_STEPS = 50
_MARKS = {"pending": " ", "in_progress": ">", "done": "x", "blocked": "!", "skipped": "-"}

SPEC = ToolSpec(
    name="update_plan",
    description=(
        "State the plan: all its steps with their status. It replaces the plan before. Keep one step in_progress while "
        "you work, and mark it done when it is."
    ),
    parameters=schema(
        {
            "steps": {
                "type": "array",
                "maxItems": MAX_STEPS,
                "items": schema(
                    {
                        "step_id": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 64,
                            "description": "Default: its number.",
                        },
                        "title": {"type": "string", "minLength": 1, "maxLength": 500},
                        "status": {"type": "string", "enum": list(get_args(StepStatus))},
                    },
                    ("title", "status"),
                ),
            },
            "current_step_id": {
                "type": "string",
                "minLength": 1,
                "description": "Default: the first step in progress.",
            },
            "status": {"type": "string", "enum": list(get_args(PlanStatus)), "description": "Default: from the steps."},
        },
        ("steps",),
    ),
    tool_class="read",
)


def plan_of(args: Arguments) -> Plan:
    """The plan the arguments state.

    Raises:
        Refused: step ids repeat, or the current step is none of them.
    """
    steps = tuple(
        PlanStep(step_id=step.get("step_id", str(number)), title=step["title"], status=step["status"])
        for number, step in enumerate(args["steps"], start=1)
    )
    ids = [step.step_id for step in steps]
    if twice := sorted({step_id for step_id in ids if ids.count(step_id) > 1}):
        raise Refused(f"step ids must differ; more than one step has {', '.join(twice)}", kind="invalid_arguments")
    under_way = next((step.step_id for step in steps if step.status == "in_progress"), None)
    current: str | None = args.get("current_step_id", under_way)
    if current is not None and current not in ids:
        raise Refused(
            f"current_step_id {current} is no step; there are {', '.join(ids) or 'none'}", kind="invalid_arguments"
        )
    return Plan(steps=steps, current_step_id=current, status=args.get("status", _status(steps)))


def _status(steps: tuple[PlanStep, ...]) -> PlanStatus:
    states = {step.status for step in steps}
    if steps and states <= {"done", "skipped"}:
        return "done"
    if "blocked" in states and "in_progress" not in states:
        return "blocked"
    return "planning" if states <= {"pending"} else "executing"


async def _run(site: Site, args: Arguments) -> Result:
    del site
    plan = plan_of(args)
    patch = checked_size(StatePatch(plan=plan), "titles, or use fewer steps")
    lines = [f"[{_MARKS[step.status]}] {step.step_id}: {step.title}\n" for step in plan.steps]
    return Result(f"plan {plan.status}\n{''.join(lines)}".encode(), state_patch=patch)


TOOL = Tool(SPEC, _run)
