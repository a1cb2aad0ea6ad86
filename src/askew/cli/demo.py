"""`askew demo`: the whole product on the sample in the package, left in a folder to be looked at."""

from pathlib import Path

import numpy as np

from askew import storage
from askew.cli.rows import Row, writer_for
from askew.cli.terminal import out, speaking
from askew.datasets.bundled import load_sample, write_folder
from askew.detectors.geometric import GeometricDetector
from askew.evaluation import auroc
from askew.images import open_images, printable
from askew.report.picture import Example, verdict_picture

SHOWN = 8


def demo(folder: Path, *, views: int, seed: int, quiet: bool) -> None:
    """Fit on sneakers, score sneakers and other things, and say how it went."""
    sample = load_sample()
    write_folder(folder)
    model, table, picture = folder / "model.safetensors", folder / "scores.csv", folder / "verdicts.png"
    with speaking(quiet) as watch:
        detector = GeometricDetector(views=views, random_state=seed, watch=watch)
        detector.fit(folder / "normal")
        detector.save(model)
        verdicts = list(detector.verdicts(open_images([str(folder / name) for name in sample.test_names])))

    line = detector.fitted_threshold
    with storage.atomic_text(table) as stream:
        write = writer_for(table, stream)
        for verdict in verdicts:
            write(Row.of(verdict, line.value))
    scores = np.array([verdict.anomaly_score for verdict in verdicts], dtype=np.float64)
    alarms = line.is_anomaly(scores)
    order = np.argsort(scores)

    def examples(rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[Example]:
        names = [sample.class_names[label] for label in sample.test_labels[rows]]
        values = zip(sample.test[rows], scores[rows], names, sample.test_is_normal[rows], strict=True)
        return [Example(pixels, float(score), name, bool(normal)) for pixels, score, name, normal in values]

    png = verdict_picture(
        "askew demo: sneakers are normal",
        examples(order[:SHOWN]),
        examples(order[::-1][:SHOWN]),
        scores,
        is_normal=sample.test_is_normal,
        threshold=line.value,
        false_alarm_rate=line.false_alarm_rate,
        groups=("sneakers", "other things"),
    )
    storage.atomic_write(picture, png)
    if quiet:
        return
    normals = int(sample.test_is_normal.sum())
    false, caught = int(alarms[sample.test_is_normal].sum()), int(alarms[~sample.test_is_normal].sum())
    low, high = line.realised_count_interval(normals)
    out.print(f"AUROC          {auroc(sample.test_is_normal, -scores):.4f}", highlight=False)
    out.print(f"threshold      {line.describe()}", highlight=False, soft_wrap=True)
    out.print(f"false alarms   {false} of {normals} new normals; {low} to {high} were to be expected", highlight=False)
    out.print(f"found          {caught} of {len(scores) - normals} anomalies", highlight=False)
    for words in (
        f"wrote          {model}, {table} and {picture}",
        f"now try        askew score {model} {folder / 'test'}",
    ):
        out.print(printable(words), highlight=False, markup=False, soft_wrap=True)
