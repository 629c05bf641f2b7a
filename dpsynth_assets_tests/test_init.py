"""`dpsynth init`: what it suggests, what it leaves to the steward, and what it never shows."""

import json
import re
import shutil

import dagster as dg
import polars as pl
import pytest
import yaml

from dpsynth_assets.advice.advice import advise
from dpsynth_assets.cli.advise import BESIDE, ROWS, proposed_methods
from dpsynth_assets.cli.column_profiles import Columns, profile_columns
from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    PublicDataSpec,
    SourceSpec,
    dataset_template,
    parse_dataset_file,
)
from dpsynth_assets.datasets.prompting import looks_like_code
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.datasets.template import Choices, ProposedCohort, ProposedMethods, scalar
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.records import SourceError
from dpsynth_assets_tests.children import dpsynth

pytestmark = pytest.mark.usefixtures("own_datasets", "known_speed")

SECRET = "Ottoline Brackenbury asked why her account was closed"


def complaints(rows=400):
    """Five columns: an id, a person with two records each, a label, a rare label value, a text."""
    return pl.DataFrame(
        {
            "ticket_id": [f"T{index}" for index in range(rows)],
            "customer_id": [f"C{index // 2}" for index in range(rows)],
            "topic": [
                "witness protection" if index == 7 else ("billing", "delivery")[index % 2]
                for index in range(rows)
            ],
            "message": [f"{SECRET}, letter number {index} of this year." for index in range(rows)],
            "score": [f"{index / 7:.3f}" for index in range(rows)],
        }
    )


def written(tmp_path, kind="csv"):
    frame, place = complaints(), tmp_path / f"data.{kind}"
    if kind == "csv":
        frame.write_csv(place)
    elif kind == "jsonl":
        rows = [{**row, "history": [1, 2]} for row in frame.to_dicts()]
        place.write_text("\n".join(map(json.dumps, rows)) + "\nbroken\n")
    else:
        frame.with_columns(history=pl.lit([1, 2])).write_parquet(place)
    return place


@pytest.fixture
def folder(own_datasets):
    """Where `init` writes."""
    return own_datasets


def init(source, *options, code=None, name="complaints"):
    return dpsynth("init", name, "--from", source, *options, code=code)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_suggestions(tmp_path, kind):
    found = profile_columns(SourceSpec(path=str(written(tmp_path, kind))))
    assert found.text == "message"
    assert found.id == "ticket_id"
    assert found.repeated(persons=True) == "customer_id"
    assert [label.name for label in found.labels] == ["topic"]


def test_the_file_declares_what_was_suggested_and_no_record_is_shown_or_written(folder, tmp_path):
    source = written(tmp_path)
    result = init(source, code=0)
    files, problems = parse_dataset_file(defs(folder))
    assert problems == []
    spec = files[0].spec
    assert (spec.source.path, spec.columns.text) == (str(source), "message")
    assert spec.columns.id == "ticket_id"
    assert (spec.privacy_unit.column, spec.privacy_unit.max_records) == ("customer_id", 1)
    assert spec.columns.labels == []
    assert spec.public_facts.records is None
    for needle in ("Ottoline", "C17", "T17", "letter number", "witness"):
        assert needle not in defs(folder).read_text() + result.output
    output = " ".join(result.output.split())
    told = ("Unit:", "Relation:", "Public facts:", "Budget:", "Public base", "1: 50%, 5: 100%")
    for subject in (*told, "dpsynth plan complaints"):
        assert subject in output
    assert "--force" in init(source, code=2).output


def defs(folder):
    return folder / "complaints" / "defs.yaml"


def documents(folder):
    """What the file declares: everything but its comments."""
    return [each["attributes"] for each in yaml.safe_load_all(defs(folder).read_text())]


@pytest.mark.parametrize("options", [(), ("--label", "topic")])
def test_label_values_are_shown_on_the_terminal_alone(folder, tmp_path, options):
    """A file with labels to list does not run, and says so in a line."""
    result = init(written(tmp_path), *options, code=0)
    told, text = " ".join(result.output.split()), defs(folder).read_text()
    assert "topic: [billing, delivery]. What you list becomes public." in told
    assert "billing" not in text
    assert ("TO DECIDE" in text) == bool(options)
    (declared,) = documents(folder)
    assert declared["public_facts"] == {"labels": {}}
    assert declared["columns"]["labels"] == [*options[1:]]
    if not options:
        return
    assert "list the public label values in the file, then dpsynth datasets check" in told
    files, (problem,) = parse_dataset_file(defs(folder))
    assert (files, problem.field) == ([], "public_facts.labels.topic")
    assert "`dpsynth init` shows those it finds" in problem.remedy
    defs(folder).write_text(text.replace("labels: {}  ", "labels: {topic: [billing, delivery]}  "))
    ((file,), _) = parse_dataset_file(defs(folder))
    assert file.spec.public_facts.labels == {"topic": ["billing", "delivery"]}


@pytest.mark.parametrize(
    ("values", "words", "declared"),
    [
        ('delivery,billing,"lost, or late"', (), ["delivery", "billing", "lost, or late"]),
        ("a=b,c", ("--label-words", "a=b=so called = b"), {"a=b": "so called = b", "c": "c"}),
        ("a=b,c\nd", (), None),
    ],
)
def test_labels_that_the_steward_names_are_public_and_each_is_a_line(
    folder, tmp_path, values, words, declared
):
    named = ("--public-labels", f"topic={values}")
    told = init(written(tmp_path), *named, *words)
    if declared is None:
        assert (told.exit_code, "Expected --public-labels" in told.output) == (2, True)
        return
    ((file,), _) = parse_dataset_file(defs(folder))
    assert file.spec.columns.labels == ["topic"]
    assert file.spec.public_facts.labels == {"topic": declared}
    assert "TO DECIDE" not in defs(folder).read_text()


@pytest.mark.parametrize(
    ("label", "is_code"),
    [(word, False) for word in ("car", "Tax", "5 law firms", "delivery", "is spam")]
    + [(word, True) for word in ("ABBR", "HUM", "3", "neg", "a", "x1", "no", "cs.LG")],
)
def test_a_short_word_is_a_code_unless_english_text_has_it(label, is_code):
    """Form alone cannot tell "neg", which the list lacks, from "pol", which it has."""
    assert looks_like_code(label) is is_code


def test_codes_are_asked_for_in_words(folder, tmp_path):
    source, named = written(tmp_path), ("--public-labels", "topic=BILL,delivery")
    told = init(source, *named)
    assert "BILL: a model does not understand codes" in " ".join(told.output.split())
    words = ("--label-words", "BILL=a wrong bill", "--domain", "Letters to a shop", "--force")
    init(source, *named, *words, code=0)
    labels = {"topic": {"BILL": "a wrong bill", "delivery": "delivery"}}
    private, public = documents(folder)
    assert private["public_facts"]["labels"] == labels
    assert public["invented"]["labels"] == ["a wrong bill", "delivery"]
    before = defs(folder).read_text()
    for wrong in ("LILL=x", "BILL=delivery", "BILL=a wrong\nbill"):
        init(source, *named, "--label-words", wrong, "--force", code=2)
        assert defs(folder).read_text() == before


def replaced(frame, row, **values):
    """A neighbour: one record has other values."""
    columns = [
        pl.when(pl.int_range(pl.len()) == row)
        .then(pl.lit(value))
        .otherwise(pl.col(name))
        .alias(name)
        for name, value in values.items()
    ]
    return frame.with_columns(columns)


def nine_of(value):
    """Nine records of a label value: one fewer than are shown."""
    frame = complaints()
    some = pl.int_range(pl.len()).is_in(list(range(20, 29)))
    return frame.with_columns(topic=pl.when(some).then(pl.lit(value)).otherwise(pl.col("topic")))


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "witness"},
        {"message": "no"},
        {"score": "witness"},
        {"ticket_id": "T4000", "customer_id": "C9000"},
        {"customer_id": "C" * 40},
    ],
)
@pytest.mark.parametrize("options", [(), ("--label", "topic")])
def test_nothing_in_the_file_depends_on_a_record(folder, tmp_path, change, options):
    found = []
    for frame in (nine_of("witness"), replaced(nine_of("witness"), 0, **change)):
        frame.write_csv(tmp_path / "data.csv")
        init(tmp_path / "data.csv", "--force", *options, code=0)
        found.append(defs(folder).read_text())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("columns", "options", "asked"),
    [
        ({"ticket_id": pl.lit("T1")}, ["--id", "none"], "values that repeat or are missing"),
        ({"order_id": pl.col("ticket_id")}, ["--id", "order_id"], "among ticket_id, order_id"),
        ({"message": pl.lit("no")}, ["--text", "message"], "does not read like sentences"),
        ({"comment": pl.col("message")}, ["--text", "comment"], "got message, comment"),
        ({"author": pl.col("customer_id")}, ["--unit", "record"], "among customer_id, author"),
        (
            {"customer_id": pl.when(pl.int_range(pl.len()) > 0).then("customer_id")},
            ["--unit", "customer_id"],
            "records without a value",
        ),
    ],
)
def test_values_that_speak_against_a_name_stop_it_and_write_nothing(
    folder, tmp_path, columns, options, asked
):
    """The steward then decides, and the file says what the steward said, whatever the values."""
    complaints().with_columns(**columns).write_csv(tmp_path / "data.csv")
    told = init(tmp_path / "data.csv", code=2).output
    assert (asked in told, options[0] in told) == (True, True)
    assert not defs(folder).exists()
    init(tmp_path / "data.csv", *options, code=0)


@pytest.mark.parametrize(
    ("names", "text", "ids", "units"),
    [
        (["review_id", "topic", "text"], "text", ("review_id",), ()),
        (["id", "productId", "reviewText"], "reviewText", ("id",), ()),
        (["user", "email_body", "content_type"], "email_body", (), ("user",)),
        (["Customer Comments", "text_length"], "Customer Comments", (), ()),
    ],
)
def test_roles_follow_from_names(names, text, ids, units):
    roles = Columns(dict.fromkeys(names))
    assert (roles.named_texts, roles.named_ids, roles.named_persons) == ([text], [*ids], [*units])


def test_control_characters_and_markup_in_a_column_name_are_shown_as_they_are(folder, tmp_path):
    source = tmp_path / "data.csv"
    complaints(438).rename({"topic": "[red]topic\x1b[2J\n\nUnit"}).write_csv(source)
    told = init(source).output
    assert "\x1b" not in told
    assert r"Columns [red]topic\x1b[2J\n\nUnit look like labels" in told


def test_a_label_without_a_record_and_records_of_another_dataset_are_pointed_out(folder, tmp_path):
    labels = "--public-labels", "topic=billing,delivry"
    first = init(written(tmp_path), *labels, "--delta", "5e-4")
    assert "δ is too large here" in " ".join(first.output.split())
    assert "No record has delivry:" in first.output
    second = init(written(tmp_path), name="again")
    assert "complaints reads them too: write shares_records_with" in second.output
    assert "No record has" not in second.output
    assert "reads them too" not in first.output


REFUSED = {
    "Bad-Name": (None, [], "lower-case letters"),
    "text": (None, ["--text", "nothing"], "Name a column of the file"),
    "unit": (None, ["--unit", "none"], "expected one of"),
    "label": (None, ["--label", "score"], "few values with many records"),
    "labels": (None, ["--public-labels", "topic"], "Expected --public-labels COLUMN=A,B,C"),
    "epsilon": (None, ["--epsilon", "-1"], "budget.epsilon: expected greater than 0, got -1"),
    "records": (None, ["--records", "10000000"], "delta"),
    "base": (None, ["--public-data", "x"], "a declared public base (english, demo), got 'x'"),
    "two bases": (None, ["--domain", "Letters", "--public-data", "demo"], "complaints_public"),
    "no header": (complaints().write_csv(include_header=False), [], "Add a header line"),
    "no sentences": ("a,b\n" + "x,y\n" * 50, [], "--text"),
    "no file": ("", [], "nothing at"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line_with_option_and_remedy(folder, tmp_path, case):
    content, options, told = REFUSED[case]
    source = written(tmp_path)
    if content is not None:
        source.write_text(content) if content else source.unlink()
    name = case if case == "Bad-Name" else "complaints"
    result = init(source, *options, code=2, name=name)
    assert told in " ".join(result.output.split())
    assert "Ottoline" not in result.output
    assert not defs(folder).exists()


@pytest.mark.parametrize("text", ["plain", "two words", "1", "yes", "ü, [x]", '"q"', "a: b", "# c"])
def test_a_scalar_is_read_back_as_the_text_it_was(text):
    assert yaml.safe_load(f"key: {scalar(text)}") == {"key": text}
    assert yaml.safe_load(f"[{scalar(text)}, b]") == [text, "b"]


def test_every_choice_reaches_the_file():
    method = {"method": "mean_clustered", "settings": {"expected_batch_size": 64}}
    chosen = ProposedCohort(methods=(method,), sections={"cluster_histogram": {}})
    choices = Choices(
        path="/data/two words.csv",
        text="the text",
        id="number",
        unit="who",
        max_records=3,
        labels={"kind": ["1", "no"]},
        unconfirmed={"sort": ["b", "a"]},
        epsilon=2.5,
        delta=1e-8,
        public_data="base",
        records=700,
        words=30,
        label_words={"1": "what one means"},
        method=ProposedMethods(chosen=chosen, why="Because of this."),
    )
    text = dataset_template("mine", choices)
    assert "# Because of this." in text
    found = yaml.safe_load(text)["attributes"]
    assert found["columns"] == {"text": "the text", "labels": ["kind", "sort"], "id": "number"}
    assert found["privacy_unit"] == {"column": "who", "max_records": 3}
    assert (found["source"]["path"], found["methods"]) == ("/data/two words.csv", [method])
    labels = {"kind": {"1": "what one means", "no": "no"}}
    assert found["public_facts"] == {"labels": labels, "records": 700, "words": 30}
    assert (found["budget"]["epsilon"], found["budget"]["delta"]) == (2.5, 1e-8)
    assert (found["public_data"], "cluster_histogram" in found) == ("base", True)


# The method


SMOLLM2 = PublicDataSpec(name="words", language_model={"kind": "smollm2"})


def proposed(records, epsilon=4.0, labels=5, base=SMOLLM2, **further):
    values = {"stars": [f"{number} stars" for number in range(labels)]}
    choices = Choices(records=records, epsilon=epsilon, delta=1e-7, labels=values, **further)
    return proposed_methods(choices, base)


@pytest.mark.parametrize(("records", "epsilon"), [(None, 4.0), (1500, 4.0), (20_000, 10.0)])
def test_the_file_holds_what_advice_ranks_first_and_its_plan_is_not_refused(records, epsilon):
    method = proposed(records, epsilon)
    choices = Choices(method=method, records=records, epsilon=epsilon, delta=1e-7)
    attributes = yaml.safe_load(dataset_template("mine", choices))["attributes"]
    spec = PrivateDatasetSpec.model_validate(attributes)
    first, *others = advise(spec, SMOLLM2, rows=ROWS).offers
    assert [method.chosen.title, *(each.title for each in method.beside)] == [
        each.title for each in (first, *others[:BESIDE])
    ]
    assert [each.method for each in spec.methods] == [
        *([first.first["method"]] if first.first else []), first.method,
    ]  # fmt: skip
    assert all(each.plan.refusal is None for each in plan_dataset(spec, SMOLLM2).methods)
    assert f"{ROWS:,} rows" in method.chosen.expected


def test_methods_beside_the_first_are_comments_that_can_take_its_place():
    text = dataset_template("mine", Choices(method=proposed(3000), records=3000))
    _, _, beside = text.partition("# Or ")
    assert "share of the gap" in beside
    shown = beside[beside.index("    # - method") :].replace("    # ", "")
    (*_, last) = yaml.safe_load(re.match(r"(?:[- ].*\n)+", shown)[0])
    assert last["settings"]["rows"] == ROWS


@pytest.mark.parametrize(("words", "tokens"), [(10, 24), (100, 200)])
def test_lengths_follow_from_the_words_that_are_declared(words, tokens):
    (*_, last) = proposed(3000, words=words).chosen.methods
    assert last["settings"]["max_new_tokens"] == tokens


def test_a_steward_with_little_time_gets_a_method_that_runs_in_it():
    slow = proposed_methods(Choices(records=3000), SMOLLM2)
    with pytest.raises(ValueError, match="at least") as refused:
        proposed_methods(Choices(records=3000), SMOLLM2, minutes=0.001)
    (least,) = re.findall(r"at least (\d+), the time of the quickest", str(refused.value))
    quick = proposed_methods(Choices(records=3000), SMOLLM2, minutes=int(least))
    assert quick.chosen.title != slow.chosen.title


@pytest.mark.parametrize("rows", [400, 4000])
def test_the_number_of_records_that_is_counted_changes_no_proposal(folder, tmp_path, rows):
    complaints(rows).write_csv(tmp_path / "data.csv")
    init(tmp_path / "data.csv", code=0)
    method = proposed_methods(Choices(), declared_base("english"))
    (declared,) = documents(folder)
    assert declared["public_data"] == "english"
    assert declared["methods"] == [dict(each) for each in method.chosen.methods]


# The base


DOMAIN = 'Complaints: to a "shop"'


def test_a_domain_makes_a_base_of_its_own_in_the_same_file(folder, tmp_path):
    labels = "topic=billing,delivery"
    options = ("--domain", DOMAIN, "--public-labels", labels, "--records", "400")
    init(written(tmp_path), *options, code=0)
    private, public = documents(folder)
    assert private["public_data"] == public["name"] == "complaints_public"
    assert public["domain"] == DOMAIN
    assert public["invented"]["labels"] == ["billing", "delivery"]
    files, problems = parse_dataset_file(defs(folder))
    assert not problems
    assert [type(file.spec) for file in files] == [PrivateDatasetSpec, PublicDataSpec]
    assert declared_base("complaints_public").language_model.kind == "smollm2"
    dpsynth("datasets", "check", code=0)
    plan = dpsynth("plan", "complaints", code=0)
    assert private["methods"][0]["method"] in plan.output


@pytest.mark.parametrize(
    "options", [("--label", "topic"), ("--public-labels", "topic=1,2"), ()], ids=str
)
def test_a_base_names_no_labels_that_are_found_in_records_or_are_no_words(
    folder, tmp_path, options
):
    init(written(tmp_path), "--domain", "Letters", *options, code=0)
    assert "labels" not in documents(folder)[1]["invented"]
    assert "billing" not in defs(folder).read_text().partition("\n---\n")[2]


def test_dagster_loads_both_documents_of_the_file(folder, tmp_path, monkeypatch):
    labels = ("--public-labels", "topic=billing,delivery")
    source = written(tmp_path)
    init(source, "--domain", "Letters", *labels, code=0)
    package = tmp_path / "project" / "house_of_letters"
    (package / "defs").mkdir(parents=True)
    for place in (package, package / "defs"):
        (place / "__init__.py").touch()
    (package / "defs" / "resources.py").write_text(
        "import dagster as dg\n\nfrom dpsynth_assets.definitions import resources\n\n"
        "defs = dg.definitions(resources)\n"
    )
    shutil.copytree(folder / "complaints", package / "defs" / "complaints")
    (package.parent / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\n'
        'root_module = "house_of_letters"\n'
    )
    monkeypatch.syspath_prepend(str(package.parent))
    loaded = dg.load_from_defs_folder(path_within_project=package / "defs")
    keys = {key.to_user_string() for key in loaded.resolve_asset_graph().get_all_asset_keys()}
    method = documents(folder)[0]["methods"][0]["method"]
    assert {f"complaints/{method}/corpus", "public/complaints_public/public_corpus"} <= keys


def test_labels_that_were_stored_as_floats_are_named_as_they_are_read(tmp_path):
    file = tmp_path / "a.parquet"
    pl.DataFrame({"text": ["a b c"] * 60, "stars": [1.0, 2.0, None] * 20}).write_parquet(file)
    stars = profile_columns(SourceSpec(path=str(file)))["stars"]
    assert stars.values == {"1": 20, "2": 20}


def test_a_folder_of_other_files_is_told_the_glob_that_reads_them(tmp_path):
    (tmp_path / "year=2026").mkdir()
    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "year=2026" / "part.parquet")
    with pytest.raises(SourceError, match=r"e\.g\. .*/\*\*/\*\.parquet"):
        profile_columns(SourceSpec(path=str(tmp_path)))
