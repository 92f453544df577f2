"""What a forecaster may have lived through before a job: never its own model.

For each job the prior is fitted on the other models on other clusters only. The user's own past
jobs are then the other models on the same cluster. Two names of one kind of machine ("dgx",
"dgx-ext") count as one cluster.
"""

from collections.abc import Sequence

from whatif_ours import Told

from scaledl.predictor.experience import Case, Experience, fit

LINK_KNOWN = "link known"


def kind_of(cluster: str) -> str:
    """The cluster without the mark of a rerun."""
    return cluster.removesuffix("-ext")


def cases_of(told: Sequence[Told], link_known: bool) -> list[Case]:
    """The forecasts with their truths; of those with the link known only the ones it matters to."""
    return [
        Case(
            sight=t.sight,
            truth_s=t.row.step_s,
            job=f"{t.row.cluster}/{t.row.model}",
            task=f"{t.task.scope}, {t.task.name}",
        )
        for t in told
        if t.sight is not None
        and t.task.group != "in-sample"
        and (LINK_KNOWN in t.sight.group) == link_known
    ]


def lived(
    cases: Sequence[Case], cluster: str, model: str, public: Sequence[Case] = ()
) -> tuple[Experience, Experience]:
    """Of a job: the prior for a new cluster, and with own past jobs of other models on it.

    The prior is made of the ``public`` cases where there are any, else of the other clusters.
    """
    others = [c for c in cases if not c.job.endswith(f"/{model}")]
    here = [c for c in others if kind_of(c.job.split("/")[0]) == kind_of(cluster)]
    elsewhere = [c for c in others if kind_of(c.job.split("/")[0]) != kind_of(cluster)]
    if public:
        elsewhere = [c for c in public if not c.job.endswith(f"/{model}")]
    prior = fit(elsewhere) if elsewhere else Experience(lessons={})
    return prior, prior.with_own(here)
