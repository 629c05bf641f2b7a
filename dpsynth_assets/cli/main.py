"""The `dpsynth` command: declare, plan, run, evaluate, and audit from a terminal."""

import signal

import typer

from dpsynth_assets.cli import (
    audit,
    datasets,
    evaluate,
    init,
    leak_scan,
    ledger,
    plan,
    pricing,
    purge,
    report,
    run,
    secrets,
)
from dpsynth_assets.cli.one_line import OneLineGroup
from dpsynth_assets.cli.web import command as web

app = typer.Typer(
    name="dpsynth",
    cls=OneLineGroup,
    help="Differentially private synthetic text, with every ε in one ledger.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(datasets.app, name="datasets", help="Check and list dataset files.")
app.add_typer(pricing.account, name="account", help="Price mechanisms without any data.")
app.add_typer(pricing.calibrate, name="calibrate", help="Find the noise that a target needs.")
app.add_typer(audit.app, name="audit", help="Audit a cohort; test mechanisms by their claims.")
app.add_typer(ledger.app, name="ledger", help="Show, verify and export the privacy ledger.")
app.add_typer(secrets.app, name="secrets", help="Compare noise for secrets with Gaussian DP.")
app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("evaluate")(evaluate.evaluate)
app.command("purge")(purge.purge)
app.command("leak-scan")(leak_scan.leak_scan)
app.command("ui")(web.ui)


def main() -> None:
    """Runs the command; SIGTERM interrupts it as Ctrl-C does, and no core is ever dumped."""
    from dpsynth_assets.records.memory import keep_out_of_core_dumps

    keep_out_of_core_dumps()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
