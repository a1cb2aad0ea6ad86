"""The names that others build on, reachable as documented."""

import subprocess
import sys

NAMES = """
askew.GeometricDetector askew.load
askew.geometry.TransformSet.paper askew.geometry.fit_dirichlet askew.geometry.dirichlet_normality
askew.networks.WideResNet askew.evaluation.auroc askew.evaluation.aupr_in askew.evaluation.aupr_out
"""


def test_stable_names_need_no_import_but_askew():
    script = "import askew\n" + "\n".join(NAMES.split())
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_askew_loads_nothing_heavy():
    script = "import sys, askew; sys.exit(bool({'torch', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script], check=True)
