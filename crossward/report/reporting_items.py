"""The items of two reporting guidelines, by their numbers and short names; the wording is ours.

CLAIM 2024: Tejani et al., Checklist for Artificial Intelligence in Medical Imaging: 2024 Update, Radiology: Artificial
Intelligence 6(4), 2024, 44 items. TRIPOD+AI: Collins et al., BMJ 385, e078378, 2024, 27 items with their parts.
`fact` is the name of what a run can say on the item (sections/checklist.py); "" if the authors must supply it.
"""

from __future__ import annotations

from dataclasses import dataclass

CLAIM_ADDRESS = "https://doi.org/10.1148/ryai.240300"
TRIPOD_ADDRESS = "https://doi.org/10.1136/bmj-2023-078378"


@dataclass(frozen=True)
class Item:
    number: str
    part: str
    name: str
    fact: str = ""


def _items(text: str) -> tuple[Item, ...]:
    """Lines "number | name | fact" under headings that end in a colon."""
    items = []
    part = ""
    for line in text.strip().splitlines():
        if line.endswith(":"):
            part = line.removesuffix(":")
        else:
            number, name, fact = (field.strip() for field in line.split("|"))
            items.append(Item(number, part, name, fact))
    return tuple(items)


CLAIM = _items("""
Title and abstract:
1 | Identifies the work as a study of AI, with the category of technology |
2 | Abstract: design, methods, results, conclusions |
Introduction:
3 | Background, intended use and clinical role |
4 | Aims, objectives, hypotheses |
Study design:
5 | Prospective or retrospective |
6 | Goal of the study |
Data:
7 | Sources of data | sources
8 | Inclusion and exclusion criteria |
9 | Preprocessing | preprocessing
10 | Selection of subsets | subsets
11 | De-identification |
12 | Missing data | missing
13 | Image acquisition protocol |
Reference standard:
14 | Definition of the reference standard |
15 | Why it was chosen |
16 | Source of its annotations |
17 | Annotation of the test set |
18 | Variability within and between raters |
Partitions:
19 | How data were assigned to partitions | partitions
20 | Level at which partitions are disjoint | disjoint
Testing data:
21 | Intended sample size |
Model:
22 | Description of the model | model
23 | Software | software
24 | Initial weights | initial
Training:
25 | Training approach | training
26 | How the final model was selected | selection
27 | Ensembling | ensembling
Evaluation:
28 | Metrics of performance | metrics
29 | Significance and uncertainty | uncertainty
30 | Robustness or sensitivity analysis | robustness
31 | Explainability |
32 | Evaluation on internal data | internal
33 | Testing on external data | external
34 | Registration of a clinical trial |
Results, data:
35 | Patients or examinations included and excluded | included
36 | Demographic and clinical characteristics in each partition |
Results, performance:
37 | Performance with its uncertainty | performance
38 | Diagnostic accuracy and its precision | accuracy
39 | Failure analysis | failures
Discussion:
40 | Limitations |
41 | Implications for practice |
Other information:
42 | Study protocol or further technical details | protocol
43 | Availability of software, trained model and data | availability
44 | Funding and the role of funders |
""")

TRIPOD = _items("""
Title and abstract:
1 | Title: development or evaluation, population, outcome |
2 | Abstract by TRIPOD+AI for Abstracts |
Introduction:
3a | Healthcare context and rationale |
3b | Target population and purpose, users |
3c | Known health inequalities |
4 | Objectives |
Methods:
5a | Sources of data | sources
5b | Dates of the data |
6a | Setting, number and location of centres | centres
6b | Eligibility criteria |
6c | Treatments received |
7 | Data preparation and quality checks | preprocessing
8a | Outcome and how it is assessed |
8b | Outcome assessors |
8c | Blinding of outcome assessment |
9a | Choice of predictors |
9b | Definition of predictors | predictors
9c | Predictor assessors |
10 | Sample size |
11 | Missing data | missing
12a | How data were used, partitions | partitions
12b | Handling of predictors | preprocessing
12c | Type of model, building steps, internal validation | training
12d | Heterogeneity between centres | heterogeneity
12e | Measures and plots of performance | metrics
12f | Model updating |
12g | How predictions were calculated | predictions
13 | Class imbalance | imbalance
14 | Fairness |
15 | Output of the model and thresholds | output
16 | Differences between training and evaluation | differences
17 | Ethical approval |
Open science:
18a | Funding |
18b | Conflicts of interest |
18c | Protocol | protocol
18d | Registration |
18e | Data sharing |
18f | Code sharing | availability
19 | Patient and public involvement |
Results:
20a | Flow of participants | included
20b | Characteristics of participants |
20c | Comparison with the development data |
21 | Participants and events in each analysis | included
22 | Specification of the model, to allow predictions | availability
23a | Performance with intervals, in key subgroups too | performance
23b | Heterogeneity of performance between centres | heterogeneity
24 | Results of model updating |
Discussion:
25 | Interpretation |
26 | Limitations |
27a | Poor or unavailable input when in use | poor
27b | Interaction and expertise of users |
27c | Next steps |
""")
