"""Secure aggregation in a run: what is refused before round 1, and the method with its weights summed securely."""

from __future__ import annotations

from collections.abc import Sequence

from crossward.config.schema import Config
from crossward.core.method import Method
from crossward.core.run import cohort_size
from crossward.data.federation import Split
from crossward.errors import ConfigError


def with_secure_sums(
    config: Config, method: Method, sites: Sequence[Split | str], *, across_hospitals: bool = False
) -> Method:
    """The method as [privacy] secure_aggregation asks for it; the method itself where it does not. Across hospitals the
    images of other sites are not here: all sites are taken to train."""
    settings = config.privacy
    if not settings.secure_aggregation:
        return method
    _check_rule(config, across_hospitals)
    training = [site for site in sites if across_hospitals or (isinstance(site, Split) and len(site.train))]
    cohort = cohort_size(config.run.participation, len(training))
    if cohort < settings.secure_min_sites:
        raise ConfigError(
            f"{cohort} sites train in a round, and a secure sum needs {settings.secure_min_sites}: of fewer, each "
            "could compute what the others sent",
            hint="More sites or a higher run.participation are needed, or a lower privacy.secure_min_sites, from 3 on.",
        )
    from crossward.privacy.secure_steps import SecureSettings, secured

    chosen = SecureSettings(
        seed=None if across_hospitals else config.run.seed,
        clip=settings.secure_clip,
        max_weight=settings.secure_max_images if settings.unit != "site" else 1,  # then every site counts the same
        min_sites=settings.secure_min_sites,
    )
    return secured(method, chosen)


def _check_rule(config: Config, across_hospitals: bool) -> None:
    """Refuse a robust rule, which would have to look below the masks; across hospitals there is one unless the
    configuration says that it does without."""
    rule = config.robust
    if rule.active:
        raise ConfigError(
            f'robust.rule = "{rule.rule}" compares the weights of the sites, which privacy.secure_aggregation hides',
            hint="Choose one of the two: protection from hostile sites, or from a curious server.",
        )
    if across_hospitals and rule.rule == "auto":
        raise ConfigError(
            'robust.rule = "auto" bounds across hospitals what one site can change, and privacy.secure_aggregation '
            "hides what it would have to look at",
            hint='Say that the run does without: robust.rule = "none". One hostile site can then change the result as '
            "it likes.",
        )
    if rule.ceiling < 1:
        raise ConfigError(
            f"robust.largest_share = {rule.ceiling:g} bounds how many images a site counts for, and "
            "privacy.secure_aggregation hides their number",
            hint="Leave it out. privacy.secure_max_images bounds the number of each site.",
        )
