"""Writes docs/api/command_line.md from the functions behind the command and their help texts.

pip install -e ".[cli]"
python docs/command_line.py
"""

import inspect
import re
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from keras_tfm import cli

# Instead of the names, which would make this page one more list of them.
TYPES = "[Model types](models.md#model-types), which `--help` lists."
PAGE = Path(__file__).parent / "api" / "command_line.md"


def main() -> None:
    PAGE.write_text(page())
    print(PAGE)


def page() -> str:
    """The page: a table of arguments a command."""
    lines = ["# The command line", "", cli.app.info.help, ""]
    lines += [
        '`pip install -e ".[cli]"`, in a clone, brings it. '
        "`keras-tfm COMMAND --help` says the same."
    ]
    lines += ["", inspect.cleandoc(cli.__doc__).split("\n\n", 1)[1], ""]
    for command in cli.app.registered_commands:
        function = command.callback
        name = command.name or function.__name__
        arguments = list(arguments_of(function))
        usage = [
            x["shown"] if x["default"] else f"[{x['shown']}]"
            for x in arguments
            if not x["shown"].startswith("--")
        ]
        text = re.sub(
            r"Model types, as in config.json\..*", TYPES, inspect.getdoc(function), flags=re.S
        )
        lines += [f"## keras-tfm {name}", "", text, ""]
        lines += ["```bash", " ".join(["keras-tfm", name, *usage, "[OPTIONS]"]), "```"]
        lines += ["", "| argument | meaning | default |", "|---|---|---|"]
        lines += [f"| `{x['shown']}` | {x['help']} | {x['default']} |" for x in arguments]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n"


def arguments_of(function: Any) -> typing.Iterator[dict[str, str]]:
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = typing.get_args(hints[name])[:2]
        option = type(info).__name__ == "OptionInfo"
        declared = (info.default, *(info.param_decls or ()))  # typer's first may be the option
        flags = [x for x in declared if isinstance(x, str) and x.startswith("--")]
        shown = (flags or ["--" + name.replace("_", "-")])[0] if option else name.upper()
        meaning, default = info.help, parameter.default
        if isinstance(kind, type) and issubclass(kind, Enum):
            meaning += f" One of {', '.join(choice.value for choice in kind)}."
        if kind is bool and default is True:
            shown = "--no-" + shown[2:]
            meaning = f"Leave out: {meaning[0].lower()}{meaning[1:]}"
        if default is inspect.Parameter.empty:
            text = "required"
        elif default is None or kind is bool:
            text = ""
        else:
            text = f"`{getattr(default, 'value', default)}`"
        yield {"shown": shown, "help": meaning, "default": text}


if __name__ == "__main__":
    main()
