"""Secure aggregation in a run: what is refused before round 1, and the method with its weights summed securely."""

from __future__ import annotations

from crossward.config.schema import Config
from crossward.core.method import Method
from crossward.core.run import cohort_size
from crossward.errors import ConfigError


def with_secure_sums(config: Config, method: Method, sites: int, *, across_hospitals: bool = False) -> Method:
    """The method as [privacy] secure_aggregation asks for it; the method itself where it does not. `sites` is how many
    sites have images to train on."""
    settings = config.privacy
    if not settings.secure_aggregation:
        return method
    if across_hospitals:
        raise ConfigError(
            "privacy.secure_aggregation is for simulations so far: hospitals do not know each other's keys yet",
            hint="Leave it out. What a hospital lets out is decided by its policy.",
        )
    if config.robust.active:
        raise ConfigError(
            f'robust.rule = "{config.robust.rule}" compares the weights of the sites, which '
            "privacy.secure_aggregation hides",
            hint="Choose one of the two: protection from hostile sites, or from a curious server.",
        )
    if settings.unit == "site":
        raise ConfigError(
            'privacy.unit = "site" and privacy.secure_aggregation do not go together yet',
            hint='Choose one, or protect images or patients: privacy.unit = "image".',
        )
    cohort = cohort_size(config.run.participation, sites)
    if cohort < settings.secure_min_sites:
        raise ConfigError(
            f"{cohort} sites train in a round, and a secure sum needs {settings.secure_min_sites}: of fewer, each "
            "could compute what the others sent",
            hint="More sites or a higher run.participation are needed, or a lower privacy.secure_min_sites, from 3 on.",
        )
    from crossward.privacy.secure_steps import SecureSettings, secured

    chosen = SecureSettings(
        config.run.seed, settings.secure_clip, settings.secure_max_images, min_sites=settings.secure_min_sites
    )
    return secured(method, chosen)
