"""Declaration of a private dataset in one YAML file. Everything written there is public."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

from pydantic import Field

from dpsynth_assets.datasets.cohort_windows import KEY_CHARACTERS, CohortsSpec, Window
from dpsynth_assets.datasets.dataset_sections import (
    LABEL_SEPARATOR,
    BudgetSpec,
    ColumnsSpec,
    HistogramSpec,
    MethodSpec,
    PrivacyUnitSpec,
    PublicFactsSpec,
    ScheduleSpec,
    SourceSpec,
    TopicHistogramSpec,
)
from dpsynth_assets.datasets.evaluation_section import EvaluationSpec
from dpsynth_assets.datasets.fields import Declaration, Name, Refusal, twice
from dpsynth_assets.datasets.prompting import PromptSpec, StructuredSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.json_records import JsonGrammarError, json_grammar
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger.schema import SIGNED_BY, ApprovalTerms, canonical_json, digest


class PrivateDatasetSpec(Declaration):
    """One private dataset: its records, whom it protects, what is public, what is made of it."""

    name: Name
    """Name of the cohort; first segment of its asset keys."""
    description: str = ""
    """What the records are, in a public sentence, which default prompts say: another is another
    release."""
    source: SourceSpec
    """Where the records lie."""
    shares_records_with: Name | None = None
    """Private dataset whose records are among these: both are charged to its account, under the
    same budget, unit and relation; none: no other file reads them."""
    parts: int = Field(1, ge=1, le=4096)
    """Shards of the records, in [1, 4096]: a public number, by which large stages are split
    among workers. Another number changes no release."""
    cohorts: CohortsSpec | None = None
    """How the source is partitioned into disjoint cohorts, each a partition of the dataset's assets
    with a ledger account of its own; none: it is one cohort."""
    columns: ColumnsSpec = Field(default_factory=ColumnsSpec)
    """Columns that are read."""
    structured: StructuredSpec | None = None
    """Structure of texts that are JSON records; none: free text."""
    prompt: PromptSpec | None = None
    """Templates of the prompts; none: the model's document format."""
    privacy_unit: PrivacyUnitSpec = Field(default_factory=PrivacyUnitSpec)
    """Whose presence is hidden; default: a record."""
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
    """When two datasets are neighbours; under replace-one declared ids are kept, hence public, and
    may not repeat."""
    public_facts: PublicFactsSpec = Field(default_factory=PublicFactsSpec)
    """What is public about the records."""
    budget: BudgetSpec
    """All that may ever be spent on this dataset."""
    approvals: int | None = Field(None, ge=1)
    """Approvals (>= 1) by other keys than the one that signs a charge, without which nothing is
    paid for; any edit of this file needs new ones. None: anybody may pay."""
    approvers: list[str] = Field(default_factory=list)
    """Public keys that may approve, as `dpsynth key` prints them."""
    held_out_fraction: float = Field(0.1, ge=0, le=0.5)
    """Share of units, in [0, 0.5], that no mechanism reads; kept for evaluation."""
    public_data: Name = "demo"
    """Name of the public base it builds on."""
    cluster_histogram: HistogramSpec | None = None
    """Shared noisy histogram of clusters; none: not released."""
    topic_histogram: TopicHistogramSpec | None = None
    """Shared noisy histogram of public topics; none: not released."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """What runs the language model where a method writes through an engine."""
    secrets: SecretsSpec | None = None
    """Secrets of the records and their protection; none: no promise."""
    methods: list[MethodSpec] = Field(min_length=1)
    """Corpora to be made (>= 1)."""
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    """How corpora are scored."""
    schedule: ScheduleSpec | None = None
    """When corpora are remade."""
    owners: list[str] = Field(default_factory=list)
    """Who answers for it: an e-mail address or "team:name"."""

    @property
    def constraining_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that decoding is constrained to; None where it is free."""
        structured = self.structured
        if structured is None or not structured.constrained_decoding:
            return None
        return None if isinstance(structured.json_schema, str) else structured.json_schema

    @property
    def account(self) -> str:
        """The account of the ledger that pays: its own, or that of whom it shares records with."""
        return self.shares_records_with or self.name

    @property
    def dataset(self) -> str:
        """The dataset that the ledger counts the cohort to."""
        return self.account

    @property
    def partition(self) -> str | None:
        """The rule that partitions the dataset into cohorts, in words; None: there is none."""
        return None

    @property
    def window(self) -> Window | None:
        """The part of the source, by date, that is read; None: all of it."""
        return None

    @property
    def date_column(self) -> str | None:
        """The column whose dates decide which cohort a record is in."""
        if self.window is not None:
            return self.window.column
        return None if self.cohorts is None else self.cohorts.column

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit as mechanisms know it."""
        return PrivacyUnit(**self.privacy_unit.model_dump())

    @property
    def budget_shares(self) -> float:
        """Sum of the shares of the histogram and of every method."""
        return float(sum(self._shares()))

    @property
    def composite_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Every combination of label values and how a prompt writes it, in declared order.

        Returns:
            `(labels, label_texts)`, aligned; `(("",), ("",))` where there are no labels.
        """
        columns = [self.public_facts.texts(column) for column in self.columns.labels]
        rows = list(product(*(texts.items() for texts in columns)))
        labels = tuple(LABEL_SEPARATOR.join(value for value, _ in row) for row in rows)
        return labels, tuple(", ".join(text for _, text in row) for row in rows)

    def _shares(self) -> list[Fraction]:
        """Shares as the file writes them: ten times 0.1 is one."""
        parts = [method.budget_share for method in self.methods]
        if self.cluster_histogram is not None:
            parts.append(self.cluster_histogram.budget_share)
        return [Fraction(str(part)) for part in parts if part is not None]

    @property
    def approval_terms(self) -> ApprovalTerms | None:
        """Approvals that are asked for, with the digest of what they are of; None: none are."""
        if self.approvals is None:
            return None
        fields = canonical_json(self.model_dump(mode="json", exclude_defaults=True))
        # Paths were made absolute when the file was read; approvers may have another clone.
        declaration = digest(fields.replace(f'"{project_root()}/', '"'))
        keys = tuple(self.approvers)
        return ApprovalTerms(needed=self.approvals, keys=keys, declaration=declaration)

    def refusals(self) -> Iterator[Refusal]:
        """Sections that do not fit one another."""
        yield from self._of_approvals()
        yield from self._of_columns()
        yield from self._of_structure()
        yield from self._of_methods()
        yield from self._of_account()
        if self.cohorts is not None:
            yield from self._of_cohorts(self.cohorts)
        yield from self._of_places()
        if self.secrets is not None:
            yield from self._of_secrets(self.secrets)

    def _of_approvals(self) -> Iterator[Refusal]:
        expected = "a different public key per approver, ed25519: and 64 hexadecimal digits"
        remedy = "Write what `dpsynth key` prints."
        for index, key in enumerate(self.approvers):
            if not SIGNED_BY.fullmatch(key):
                yield Refusal(f"approvers.{index}", expected, remedy)
        yield from twice("approvers", self.approvers, remedy)
        if (self.approvals or 0) > len(self.approvers) or (self.approvers and not self.approvals):
            yield Refusal(
                "approvals",
                f"1 to {len(self.approvers)} approvals, at most one per approver"
                if self.approvers
                else "a list of approvers, whose keys can approve",
                "Write approvals: 2, and a list of approvers with at least as many keys.",
            )

    def _of_columns(self) -> Iterator[Refusal]:
        listed = self.public_facts.labels
        for column in self.columns.labels:
            if column not in listed:
                yield Refusal(
                    f"public_facts.labels.{column}",
                    f"the public values of label column {column!r}",
                    "List them (`dpsynth init` shows those it finds, on the terminal): counts by "
                    "label are noisy, the set of labels is not protected.",
                    "none",
                )
        for column in listed:
            if column not in self.columns.labels:
                yield Refusal(
                    f"public_facts.labels.{column}",
                    "only columns named in columns.labels",
                    f"Add {column!r} to columns.labels, or drop it here.",
                    repr(column),
                )
        if not self.columns.object and self.privacy_unit.column == self.columns.text:
            remedy = "Drop it: without a column the unit is one record."
            yield Refusal("privacy_unit.column", "a column other than the text", remedy)

    def _of_structure(self) -> Iterator[Refusal]:
        schema = self.constraining_schema
        if self.structured is None and self.prompt is not None and self.prompt.uses_schema:
            remedy = "Declare structured.json_schema, or drop {schema}."
            yield Refusal("structured", "a schema for the {schema} of a prompt template", remedy)
        if schema is None:
            return
        prompt = self.prompt or PromptSpec()
        otherwise = "or set structured.constrained_decoding: false."
        if prompt.text_end:
            expected = "no text_end with a schema, since a schema ends its texts"
            yield Refusal("prompt.text_end", expected, f"Drop it, {otherwise}")
        try:
            json_grammar(schema, prompt.text_start)
        except JsonGrammarError as error:
            if error.start:
                expected = (
                    "the beginning of a text of structured.json_schema, with its first property"
                )
                yield Refusal("prompt.text_start", expected, f"Fix it, {otherwise}")
            yield Refusal(
                "structured.json_schema",
                "a schema that decoding can be constrained to",
                f"Write the schema in another way, {otherwise}",
                str(error),
            )

    def _of_methods(self) -> Iterator[Refusal]:
        keys = [method.key for method in self.methods]
        yield from twice("methods", keys, "Give one of them another name.")
        for unknown in sorted({*(self.schedule.methods if self.schedule else ())} - {*keys}):
            yield Refusal(
                "schedule.methods",
                f"names among {', '.join(keys)}",
                "Name corpora of this file, or leave the list empty for all.",
                unknown,
            )
        if (total := sum(self._shares())) > 1:
            yield Refusal(
                "methods",
                "budget shares (cluster_histogram and methods) with a sum of at most 1",
                "Lower a budget_share, or drop a method.",
                f"{float(total):g}",
            )
        records = self.public_facts.records
        if records is not None and Fraction(str(self.budget.delta)) * 10 * records > 1:
            yield Refusal(
                "budget.delta",
                f"delta <= 1 / (10 x {records}) = {rounded_down(1 / (10 * records), '.3g')}",
                "Lower delta to a public power of ten below that.",
                declared(self.budget.delta),
            )

    def _of_cohorts(self, cohorts: CohortsSpec) -> Iterator[Refusal]:
        where = "where the source is partitioned into cohorts"
        if self.neighboring_relation is not NeighboringRelation.ADD_REMOVE:
            yield Refusal(
                "neighboring_relation",
                f"add-remove {where}",
                "A replaced record may move to another cohort, and zero-out needs the number of "
                "records of every cohort to be public.",
            )
        if self.privacy_unit.column is not None:
            yield Refusal(
                "privacy_unit.column",
                f"one record as the unit {where}",
                "A unit with records in several cohorts would pay in each: drop the column, or "
                "drop cohorts.",
            )
        if self.columns.id is None:
            yield Refusal(
                "columns.id",
                f"an id column {where}",
                "Name a column of ids that never change: a record that moves to another cohort is "
                "recognised by its id.",
            )
        if len(self.name) > 64 - KEY_CHARACTERS:
            limit = f"at most {64 - KEY_CHARACTERS} characters, since a cohort's key is added"
            yield Refusal("name", limit, "Choose a shorter name.", f"{len(self.name)}")
        folder, _, name = self.source.path.rpartition("/")
        if cohorts.by == "file" and ("://" in folder or set("*?[") & set(folder) or not name):
            yield Refusal(
                "source.path",
                "a local folder and a pattern of file names where every file is a cohort",
                "Write e.g. data/mail/*.jsonl.",
            )

    def _of_account(self) -> Iterator[Refusal]:
        if self.shares_records_with is None:
            return
        where = "where an account is shared"
        if self.shares_records_with == self.name:
            yield Refusal("shares_records_with", "another dataset", "Drop it.")
        if self.budget.accountant != "zcdp":
            remedy = "A fixed plan covers only the releases of one file: write zcdp in both files."
            yield Refusal("budget.accountant", f"zcdp {where}", remedy)
        if self.cohorts is not None:
            yield Refusal("cohorts", f"none {where}", "Drop one of the two.", "some")

    def _of_places(self) -> Iterator[Refusal]:
        zero_out = self.neighboring_relation is NeighboringRelation.ZERO_OUT
        if zero_out and self.public_facts.records is None:
            yield Refusal(
                "public_facts.records",
                "the public number of records, which zero-out neighbours share",
                "Declare public_facts.records, or use neighboring_relation: add-remove.",
            )
        if self.public_facts.slots and not zero_out:
            yield Refusal(
                "public_facts.slots",
                "neighboring_relation: zero-out, whose neighbours keep every record's place",
                "Set neighboring_relation: zero-out, or drop slots.",
                str(self.neighboring_relation),
            )
        if self.public_facts.slots and self.columns.id is None:
            yield Refusal(
                "columns.id",
                "an id column, since places are public: without ids, places depend on the texts",
                "Name a column of public ids, or drop public_facts.slots.",
            )

    def _of_secrets(self, secrets: SecretsSpec) -> Iterator[Refusal]:
        replaced = self.neighboring_relation is NeighboringRelation.REPLACE_ONE
        if replaced and secrets.adjacency == "removal":
            yield Refusal(
                "secrets.adjacency",
                "substitution where records are replaced (neighboring_relation: replace-one)",
                "Replacing records never results in the dataset without the secret's records.",
            )
        if secrets.public_incidence is not None and self.columns.id is None:
            yield Refusal(
                "columns.id",
                "an id column where public_incidence names records by their ids",
                "Name a column of public ids, or drop secrets.public_incidence.",
            )
        split = self.privacy_unit.column is not None or self.cohorts is not None
        if secrets.public_incidence is not None and split:
            yield Refusal(
                "secrets.public_incidence",
                "no public_incidence with privacy_unit.column (ids are unique only within a "
                "unit) or with cohorts (each holds only some of the listed records)",
                "Drop one of the two.",
                "both",
            )
        if self.budget.accountant != "tight":
            yield Refusal(
                "budget.accountant",
                "tight where a bound on secrets is declared",
                "A (p, r) bound is composed from dominating pairs of a fixed plan: write tight.",
            )
