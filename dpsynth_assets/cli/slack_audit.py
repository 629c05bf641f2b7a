"""`dpsynth audit run COHORT`: how far rounding moves logits of the cohort's own model, here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.datasets import PrivateDatasetSpec

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import Audit, AuditResult
    from dpsynth_assets.attacks.logit_moves import PassShape
    from dpsynth_assets.methods.base import CohortTerms


@dataclass(frozen=True, kw_only=True)
class CohortAudit:
    """The audit of what decodes for a cohort.

    Attributes:
        audit: It.
        terms: Of the cohort.
    """

    audit: "Audit"
    terms: "CohortTerms"

    def save(self, results: "list[AuditResult]") -> None:
        """Keeps results where plans look for them; those of planted bugs are not kept."""
        from dpsynth_assets.attacks.audits import save_results
        from dpsynth_assets.methods.private_prediction.measured_slack import (
            settings_of,
            slack_file,
        )

        own = settings_of(self.terms)
        save_results(
            slack_file(), [replace(each, settings=own) for each in results if each.bug is None]
        )


def cohort_audit(name: str, report: Callable[[str], None]) -> CohortAudit:
    """Opens the public model of a cohort, in what decodes for it; no private record is read.

    Args:
        name: The cohort.
        report: Told what is being made or opened.

    Raises:
        ValueError: It is not declared, no method of it predicts privately, or its model cannot be
            opened.
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.private_prediction.decoding import decoder_of
    from dpsynth_assets.methods.private_prediction.measured_slack import cohort_audit as audit_of
    from dpsynth_assets.methods.private_prediction.method import PrivatePrediction
    from dpsynth_assets.models.prompt_templates import prompted

    spec = find_cohort(name, to_spend=True)
    plan = plan_dataset(spec)
    methods = [each.method for each in plan.methods if isinstance(each.method, PrivatePrediction)]
    if not methods:
        raise ValueError(
            f"{name}: expected a method of private prediction, whose logits rows of a pass may "
            "move, got none. There is nothing to measure."
        )
    report("opening the public model")
    model = prompted(_language_model(spec), plan.terms.prompts)
    declared = min(method.config.logit_slack for method in methods)
    decoder = decoder_of(plan.terms, model)
    passes = _largest([method.pass_shape(model) for method in methods])
    return CohortAudit(
        audit=audit_of(plan.terms, declared, decoder, model, passes), terms=plan.terms
    )


def _largest(shapes: "list[PassShape]") -> "PassShape":
    return replace(
        shapes[0],
        rows=max(shape.rows for shape in shapes),
        columns=max(shape.columns for shape in shapes),
        new_tokens=max(shape.new_tokens for shape in shapes),
    )


def _language_model(spec: PrivateDatasetSpec) -> Any:
    """The language model of a cohort's base, which is made here if it has not been."""
    from dpsynth_assets.datasets.declared_bases import declared_base
    from dpsynth_assets.public_base import PublicBase
    from dpsynth_assets.public_base.documents import read_documents

    base = declared_base(spec.public_data)
    if base is None:
        raise ValueError(f"Expected a declared public base, got {spec.public_data!r}. Declare it.")
    fields = base.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    documents = None if base.invents_documents else read_documents(base)
    public = PublicBase(documents, name=base.name, **fields)
    return public.models.language_model(
        public.values(["public_language_model"])["public_language_model"]
    )
