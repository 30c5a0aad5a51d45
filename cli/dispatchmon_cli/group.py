"""
The group of all subcommands, and what every one of them does when it fails.

Exit status: 0 fine, 1 could not do it, 2 something was found, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from dispatchmon import DispatchmonError
from dispatchmon.words.harmless import printable

# A subcommand's file is loaded when it is called, so that `dispatchmon --help` answers at once.
COMMANDS = {
    "summarize": "What ran, what it wrote over, and what stands out.",
    "structure": "The module tree, with shapes and dtypes of what went in and came out.",
    "audit": "Every in-place write, and which are hazards.",
    "nonfinite": "Where the first NaN or Inf was born, what led there, and where it went.",
    "show": "The rows themselves, filtered.",
    "info": "What a trace is: version, environment, completeness, cost.",
    "export": "Write the rows as Parquet or CSV, or trends for TensorBoard.",
}


class LazyGroup(click.Group):
    """A click group whose commands are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's file and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"dispatchmon_cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' one-line help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import dispatchmon

        click.echo(f"dispatchmon {dispatchmon.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """
    Read what DispatchMonitor recorded: every operator, its numbers, and what it wrote over.

    TRACE is a file; several files or a folder are the ranks of one run.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status.

    Args:
        arguments: what follows the program's name; default those of this process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal lacks is no reason to fail
    try:
        # Not click's own main(): it would exit with 1 on a closed pipe and with 2 on a usage error.
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()  # `dispatchmon … | head`: the reader has what it wanted
        return 0
    except KeyboardInterrupt:
        return 130
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "dispatchmon"
        return _fail(f"{error.format_message().rstrip('.')}; see `{where} --help`")
    except click.ClickException as error:
        return _fail(error.format_message())
    except DispatchmonError as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _drop_stdout()
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    return status


def _run(arguments: list[str]) -> int:
    try:
        with group.make_context("dispatchmon", arguments) as ctx:
            status = group.invoke(ctx)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return status if isinstance(status, int) else 0


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    click.echo(f"dispatchmon: {printable(' '.join(message.split()))}", err=True)
    return 1
