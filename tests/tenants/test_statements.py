"""Every statement that a client can reach names the tenant, or is on a list with the reason why it need not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import holdfast
from holdfast.store.statements import statements

ROOT = Path(holdfast.__file__).parent
OF_A_TENANT = re.compile(
    r"tenant_id\)?\s*(=|<>|in)\s*\(?\$\d"  # a comparison with a parameter
    r"|tenant_id\s*,[^;]*\$\d"  # a column of an insert
    r"|\([^()]*tenant_id[^()]*\)\s*[<>=]+\s*\([^()]*\$"  # a row comparison
)

WITHOUT_A_TENANT = {
    "A pass over the work of all tenants, by the engine's own loops": """
        admit_retries next_due postpone_retries promote spend_quotas unclaimed_lanes
        unanswered_children open_runs_below overdue_waits""",
    "By the ids of rows that the same transaction found by tenant and holds locked": """
        answer_child carry_budgets cancel_waits failed_for_child kept_child lock_signal read_signal run_tasks_to_cancel
        unwant_child last_wait_of_page waiting_child waiting_node return_dead_letter release_dead_task
        lease_dead_task""",
    "By rows that were listed by tenant just before, and the block that an id is of": "block_of fill_tasks",
    "By the number of a run that was found by tenant just before": "last_failures waiting_counts",
    "By a generation of a dataset that was found by tenant just before": """
        add_builds builds_left builds_to_cancel count_rows create_generation_tables drop_generation_tables
        end_generation delete_stages lock_leaving previous_generation refresh_dataset_view schema_exists supersede""",
    "Of a worker, and only of tasks of the worker's own tenant": "show_worker",
    "By the id and token of a lease that this worker holds": "recall_steps",
    "Says where the stream of events ends, and nothing of what is in it": "event_tail",
}


@cache
def parts(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """The statements that a module names, and the modules of this package that it imports."""
    named, imported = set(), set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        match node:
            case ast.Attribute(value=ast.Name(module_name), attr=name) if module_name.endswith("_sql"):
                named |= {name} & statements().keys()
            case ast.ImportFrom(module=str(source), names=names) if source.startswith("holdfast."):
                if module.startswith("holdfast.engine.use_cases.") and all(name.name[0].isupper() for name in names):
                    # A use case imports the type of a result to name it, and calls nothing in its module.
                    continue
                imported |= {source, *(f"{source}.{name.name}" for name in names)}
    return frozenset(named), frozenset(one for one in imported if path_of(one).is_file())


def path_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")


def reachable() -> set[str]:
    """The statements of the client's modules, of the use cases, and of the verbs that both call."""
    modules = {f"holdfast.client.{path.stem}" for path in (ROOT / "client").glob("*.py")}
    modules |= {f"holdfast.engine.use_cases.{path.stem}" for path in (ROOT / "engine" / "use_cases").glob("*.py")}
    verbs = {one for module in modules for one in parts(module)[1] if one.startswith("holdfast.engine.")}
    return {name for module in modules | verbs for name in parts(module)[0]}


def test_every_statement_of_the_client_names_the_tenant_or_a_reason():
    known = statements()
    without = {name for name in reachable() if not OF_A_TENANT.search(known[name].text)}
    excused = {name for names in WITHOUT_A_TENANT.values() for name in names.split()}
    assert without - excused == set(), "a client of one tenant could reach rows of another"


def test_every_excuse_is_needed():
    """A list that outlives what it excuses hides the next mistake."""
    found = {name for name in reachable() if not OF_A_TENANT.search(statements()[name].text)}
    excused = {name for names in WITHOUT_A_TENANT.values() for name in names.split()}
    assert excused <= found


def test_the_reader_tells_a_statement_without_a_tenant():
    assert OF_A_TENANT.search("select 1 from t where t.tenant_id = $2")
    assert not OF_A_TENANT.search("select tenant_id from t where t.task_id = any($1::bigint[])")
