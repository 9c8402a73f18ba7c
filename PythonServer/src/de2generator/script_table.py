"""Every script by its name, and what ``/v1/cancel`` does while it plays."""

from de2generator import believable, odd_scripts, plans, scripts
from de2generator.scene import CancelManner, Script
from de2generator.script_line import ScriptLine

SCRIPTS: dict[str, Script] = {
    "trickle": scripts.trickle,
    "silent": scripts.silent,
    "prefill": scripts.prefill,
    "nonstream": scripts.nonstream,
    "busy": scripts.busy,
    "drop": scripts.drop,
    "toolcall": scripts.toolcall,
    "late": scripts.late,
    "strict": scripts.strict,
    "deaf": scripts.deaf,
    "refuse_cancel": scripts.refuse_cancel,
    "plan": plans.plan,
    "believable": believable.answer,
    "split": odd_scripts.split,
    "surrogates": odd_scripts.surrogates,
    "nul": odd_scripts.nul,
    "html": odd_scripts.html,
    "halfjson": odd_scripts.halfjson,
    "badutf8": odd_scripts.badutf8,
    "endless": odd_scripts.endless,
    "empty": odd_scripts.empty,
    "nothing": odd_scripts.nothing,
    "error": odd_scripts.error,
}
_MANNERS = {
    "deaf": CancelManner.DEAF,
    "refuse_cancel": CancelManner.REFUSE,
    "refuse": CancelManner.REFUSE,
}


def cancel_manner(line: ScriptLine) -> CancelManner:
    """From the option ``cancel=`` that every script takes, else from the script itself."""
    return _MANNERS.get(line.text("cancel", line.name), CancelManner.OBEY)


def describe_scripts() -> str:
    """A paragraph a script, from its docstring, for the command line's help."""
    paragraphs = []
    for name, act in SCRIPTS.items():
        words = " ".join((act.__doc__ or "").split()).replace("``", "")
        paragraphs.append(f"  {name}: {words}")
    return "\n".join(paragraphs)
