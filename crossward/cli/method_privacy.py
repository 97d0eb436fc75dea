"""What each method of the catalogue sends and what can protect it, as a table.

`python -m crossward.cli.method_privacy docs/privacy.md` writes the table into the page, between its two marks. The
answers are those by which runs are refused, so that the page cannot promise more than the code keeps.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.disk import write_atomically
from crossward.errors import ConfigError

if TYPE_CHECKING:
    from crossward.core.method import Method

BEGIN = "<!-- crossward methods --table privacy: begin -->"
END = "<!-- crossward methods --table privacy: end -->"
HEADINGS = ("method", "a site sends", "secure sums", "noise: image, patient", "noise: site", "why not")


@dataclass(frozen=True)
class MethodPrivacy:
    """A method with its default options; a reason that is empty means that it can be protected so."""

    name: str
    sends: tuple[str, ...]  # kinds, as a policy names them
    no_secure_sum: str
    no_image_noise: str  # the same for patients
    no_site_noise: str

    def cells(self) -> tuple[str, ...]:
        """A row of the table, in the order of HEADINGS."""
        answers = [_yes_no(reason) for reason in (self.no_secure_sum, self.no_image_noise, self.no_site_noise)]
        return (f"`{self.name}`", ", ".join(self.sends) or "nothing", *answers, self._reasons())

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def _reasons(self) -> str:
        lines = [f"secure sums: {self.no_secure_sum}"] if self.no_secure_sum else []
        if self.no_image_noise and self.no_image_noise == self.no_site_noise:
            lines.append(f"noise: {self.no_image_noise}")
        else:
            lines += [f"noise for images: {self.no_image_noise}"] if self.no_image_noise else []
            lines += [f"noise for sites: {self.no_site_noise}"] if self.no_site_noise else []
        return "<br>".join(lines)


def privacy_of_methods() -> list[MethodPrivacy]:
    """Every method of the catalogue. Imports torch."""
    from crossward.methods import METHODS, method_class

    return [_privacy_of(name, method_class(name)()) for name in METHODS]


def _privacy_of(name: str, method: Method) -> MethodPrivacy:
    from crossward.privacy.method_support import dp_refusal
    from crossward.privacy.secure_methods import secure_refusal

    sent: dict[str, bool] = {}  # kind -> whether it is sent always
    for item, disclosure in method.discloses.items():
        kind = str(disclosure.kind)
        sent[kind] = sent.get(kind, False) or item not in method.sometimes
    kinds = tuple(kind if always else f"sometimes {kind}" for kind, always in sent.items())
    refusals = (secure_refusal(method), dp_refusal(method, "image"), dp_refusal(method, "site"))
    return MethodPrivacy(name, kinds, *(_without_name(reason, type(method).__name__) for reason in refusals))


def markdown_table(rows: list[MethodPrivacy]) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_table(page: str, table: str) -> str:
    """A page with the table between its marks, whatever stood there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the table: {BEGIN} and below it {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _without_name(reason: str, name: str) -> str:
    """The reason in a row that has the method's name already."""
    return reason.removeprefix(f"{name}: ").removeprefix(f"{name} ")


def _yes_no(reason: str) -> str:
    return "no" if reason else "yes"


def main() -> None:
    file = Path(sys.argv[1])
    page = with_table(file.read_text(encoding="utf-8"), markdown_table(privacy_of_methods()))
    write_atomically(file, page.encode())


if __name__ == "__main__":
    main()
