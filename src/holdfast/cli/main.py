"""The root of the command line: `holdfast NOUN VERB`, and the module of each command."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.ui.command_tree import Root, common_options
from holdfast.cli.ui.shell import Shell

HOMES = {
    "Run": {
        "dev": ("holdfast.cli.commands.dev:dev", "Run everything in one process tree on the embedded database."),
        "server": ("holdfast.cli.commands.server:server", "Serve the HTTP API and run the maintenance loops."),
        "work": ("holdfast.cli.commands.work:work", "Start a worker for the actions of an app."),
        "attach": ("holdfast.cli.commands.attach:attach", "Run the one attempt this process was launched for."),
    },
    "Work": {
        "task": ("holdfast.cli.commands.task:task", "Submit, follow and control tasks."),
        "dead": ("holdfast.cli.commands.dead:dead", "List, re-drive and dismiss dead letters."),
        "campaign": ("holdfast.cli.commands.campaign:campaign", "Re-drive a group of dead letters step by step."),
        "flow": ("holdfast.cli.commands.flow:flow", "List, draw and check flows."),
        "run": ("holdfast.cli.commands.run:run", "Start, follow and control runs of flows."),
        "queue": ("holdfast.cli.commands.queue:queue", "List, pause, drain and limit queues."),
        "worker": ("holdfast.cli.commands.worker:worker", "List and drain workers."),
        "launch": ("holdfast.cli.commands.launch:launch", "List the workers that launchers started."),
        "action": ("holdfast.cli.commands.action:action", "List actions, and control their circuit breakers."),
        "pack": ("holdfast.cli.commands.pack:pack", "Check packs of YAML actions."),
        "effect": ("holdfast.cli.commands.effect:effect", "List, govern and compensate effects."),
        "schedule": ("holdfast.cli.commands.schedule:schedule", "List, create, pause and fire schedules."),
        "dataset": ("holdfast.cli.commands.dataset:dataset", "List datasets, cut over, roll back."),
        "webhook": ("holdfast.cli.commands.webhook:webhook", "Deliver signed events to URLs."),
        "top": ("holdfast.cli.commands.top:top", "Watch queues and workers live."),
    },
    "Administration": {
        "tenant": ("holdfast.cli.commands.tenant:tenant", "Create, list and limit tenants."),
        "migrate": ("holdfast.cli.commands.migrate:migrate", "Migrate the schema to the current version."),
        "doctor": (
            "holdfast.cli.commands.doctor:doctor",
            "Check this machine and the database, with a fix for each finding.",
        ),
        "verify": ("holdfast.cli.commands.verify:verify", "Check the invariants on the live database."),
        "wake": ("holdfast.cli.commands.wake:wake", "Turn wake-up hints for SQS or Redis on or off."),
        "audit": ("holdfast.cli.commands.audit:audit", "List audited changes, and verify the audit log."),
        "token": ("holdfast.cli.commands.token:token", "Create, list and revoke API tokens."),
        "member": ("holdfast.cli.commands.member:member", "Manage who may sign in, and with which role."),
        "bench": ("holdfast.cli.commands.bench:bench", "Measure this database, and its raw ceiling for comparison."),
        "completion": ("holdfast.cli.commands.completion:completion", "Print a completion script for your shell."),
    },
}


@click.group(
    cls=Root,
    homes=HOMES,
    params=common_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "obj": None},
    epilog="Exit codes: 0 ok · 1 failed · 2 usage · 3 not found · 4 auth · 5 conflict · 6 timeout · 130 Ctrl-C.",
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable tasks and flows on PostgreSQL. Data goes to stdout, messages to stderr."""
    ctx.ensure_object(Shell)


def main() -> None:
    """Run the `holdfast` command."""
    cli(prog_name="holdfast")


if __name__ == "__main__":
    main()
