"""crossward table: the list, the formats, our figures, and study files."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tomllib

import pytest

from crossward.cli.table_formats import escape_latex
from crossward.comparison.papers.tables import paper_table, table_names


def test_the_list_names_all_with_their_flags(cli):
    output = cli("table")
    assert output.code == 0
    for name in table_names():
        assert f" {name} " in output.out
    for words in ("PARTIAL", "MISSING", "INFERRED", "11 x 4", "none of its figures is known"):
        assert words in output.out
    rows = json.loads(cli("table", "--json").out)
    assert len(rows) == 31
    assert rows[3] | {"paper": ""} == {
        "table": "fedbm-4", "paper": "", "number": 4, "rows": 11, "columns": 4, "flags": {},
        "title": "PBC: methods under two degrees of label skew",
    }  # fmt: skip


@pytest.mark.parametrize("name", table_names())
def test_every_table_prints_in_every_format(cli, name):
    for form in ("terminal", "markdown", "latex", "csv"):
        output = cli("table", name, "--format", form)
        assert output.code == 0, output.err
        names = [*map(escape_latex, paper_table(name).rows)] if form == "latex" else paper_table(name).rows
        assert form == "terminal" or all(row in output.out for row in names)
        assert "method" in output.out.lower()


def test_the_terminal_shows_the_papers_figures(cli):
    output = cli("table", "fedbm-4")
    assert "80.54 ± 5.53" in output.out
    assert "ours" not in output.out
    assert "NA: some figures are lost" in cli("table", "fedbm-9").out


def test_markdown_has_a_row_for_each_method(cli):
    lines = [line for line in cli("table", "fedbm-4", "--format", "markdown").out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 11
    assert {line.count("|") for line in lines} == {6}
    assert "| FedBM | 84.90 ± 3.29 | 80.54 ± 5.53 | 89.88 ± 4.47 | 87.71 ± 6.09 |" in lines


def test_latex_is_escaped_and_every_row_has_as_many_cells(cli):
    for name in ("fedbm-9", "fedcb-2", "mh-pflgb-2", "fedcb-4"):
        text = cli("table", name, "--format", "latex").out
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
        columns = re.search(r"\\begin\{tabular\}\{([lc]+)\}", text)
        assert columns
        for line in body.strip().splitlines():
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns[1]) - 1
            assert not re.search(r"(?<!\\)[_%#]", line)
            assert "±" not in line
            assert "^" not in line
    assert r"FedREP \textasciicircum{}" in cli("table", "fedcb-2", "--format", "latex").out
    assert r"w/o L\_div" in cli("table", "fedbm-9", "--format", "latex").out
    assert r"FedCB(25\%)" in cli("table", "fedcb-4", "--format", "latex").out


def test_csv_is_read_back(cli):
    rows = list(csv.reader(io.StringIO(cli("table", "fedbm-4", "--format", "csv").out)))
    assert rows[0] == [
        "method",
        "figures",
        *(f"PBC {s} {m}" for s in ("beta=0.05", "beta=0.1") for m in ("Accuracy", "F1")),
    ]
    assert rows[-1] == ["FedBM", "paper", "84.90 ± 3.29", "80.54 ± 5.53", "89.88 ± 4.47", "87.71 ± 6.09"]


def test_our_figures_stand_beside(cli, tmp_path, finished_run):
    result = finished_run()
    about = json.loads((result.folder / "run.json").read_text())
    about["config"]["data"] = {"source": "pbc"}
    about["config"]["partition"] |= {"kind": "dirichlet", "beta": 0.05}
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "summary.json").write_text((result.folder / "summary.json").read_text())
    (tmp_path / "more").mkdir()
    f1 = 100 * result.summary["best"]["metrics"]["test"]["global"]["f1"]
    output = cli("table", "fedbm-4", "--runs", tmp_path / "runs", tmp_path / "more")
    assert output.code == 0, output.err
    assert f"{f1:.2f} (n=1) A" in output.out
    assert "not run" in output.out
    assert "Not run: 42 of 44 figures." in output.out
    assert "A: pbc, 28x28 pixels" in output.out
    document = json.loads(cli("table", "fedbm-4", "--runs", tmp_path / "runs", "--json").out)
    [record] = [each for each in document["figures"] if each.get("ours") and each["metric"] == "F1"]
    assert record["ours"][0]["mean"] == pytest.approx(f1)
    assert record["ours"][0]["folders"] == [str(folder)]
    latex = cli("table", "fedbm-4", "--runs", tmp_path / "runs", "--format", "latex").out
    assert "FedAvg & ours & " in latex


def test_study_files_are_written_and_not_overwritten(cli, tmp_path):
    output = cli("table", "fedbm-6", "--config", "--out", tmp_path / "new")
    assert output.code == 0
    files = [tmp_path / "new" / line.rpartition("/")[2] for line in output.out.split()]
    assert len(files) == 4
    for file in files:
        document = tomllib.loads(file.read_text())
        assert {method["label"] for method in document["study"]["method"]} == {"w/o LKCC", "w/o CGDE", "FedBM"}
    again = cli("table", "fedbm-6", "--config", "--out", tmp_path / "new")
    assert again.code == 5
    assert "there already" in again.err
    small = cli("table", "fedbm-4", "--config", "--small", "--out", tmp_path)
    assert small.out.endswith("fedbm-4-small.toml\n")
    assert "about" in (tmp_path / "fedbm-4-small.toml").read_text().splitlines()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedbm-44"], "Did you mean 'fedbm-4'?"),
        (["fedbm-4", "--small"], "--small is for --config"),
        (["--config"], "which table?"),
        (["fedbm-4", "runs"], "For our figures: --runs runs."),
        (["fedbm-4", "--config", "--runs", "x"], "one at a time"),
    ],
)
def test_mistakes(cli, words, message):
    output = cli("table", *words)
    assert output.code == 2
    assert message in output.err


def test_a_folder_of_runs_that_is_not_there(cli):
    output = cli("table", "fedbm-4", "--runs", "nowhere")
    assert output.code == 5
    assert "there is no folder nowhere" in output.err


def test_tables_print_without_torch():
    code = """
import sys
from crossward.cli.main import main
for words in ([], ["fedbm-4"], ["fedbm-4", "--runs", "."], ["fedbm-4", "--config", "--out", sys.argv[1]]):
    sys.argv = ["crossward", "table", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, words
print(sorted({"torch", "numpy", "scipy", "pydantic"} & set(sys.modules)), file=sys.stderr)
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, cwd=folder
        )
    assert process.stderr == "[]\n"
