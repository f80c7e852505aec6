"""Prints EXPECTED: the average precision of random detections, by pycocotools.

pip install pycocotools==2.0.11 numpy
python tests/parity/make_detection_fixture.py
"""

import numpy as np

IMAGES, CLASSES = 20, 3
# {iou: the results of seeds 0 to 4}, printed by this file.
EXPECTED = {
    0.5: [
        0.19774681137146297, 0.2858660732243247, 0.11404410983988343, 0.17662160491212767,
        0.25393506047996667,
    ],
    0.75: [
        0.028027494478771186, 0.05979109468354945, 0.029966430206807098, 0.021633738034436925,
        0.04085364947429734,
    ],
}  # fmt: skip


def drawn(rng):
    """Classes (M,), boxes (M, 4), and labels, scores and boxes of 12 detections near them."""
    count = rng.integers(0, 6)
    classes = rng.integers(0, CLASSES, count)
    targets = np.concatenate(
        [rng.uniform(0.2, 0.8, (count, 2)), rng.uniform(0.1, 0.4, (count, 2))], 1
    )
    boxes = np.concatenate([rng.uniform(0.2, 0.8, (12, 2)), rng.uniform(0.1, 0.4, (12, 2))], 1)
    labels = rng.integers(0, CLASSES, 12)
    for i in range(12):
        if count and rng.random() < 0.7:
            j = rng.integers(0, count)
            boxes[i] = targets[j] * rng.uniform(0.85, 1.15, 4)
            labels[i] = classes[j] if rng.random() < 0.8 else labels[i]
    # Some scores are equal.
    return classes, targets, labels, rng.integers(1, 40, 12) / 40, boxes


def by_pycocotools(seed, iou):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rng = np.random.default_rng(seed)
    objects, detections = [], []

    def corner(box):
        x, y, w, h = map(float, box)
        return [x - w / 2, y - h / 2, w, h]

    for image in range(1, IMAGES + 1):
        classes, targets, labels, scores, boxes = drawn(rng)
        objects += [
            {"image_id": image, "category_id": int(c), "bbox": corner(b), "area": 1.0, "iscrowd": 0}
            for c, b in zip(classes, targets, strict=True)
        ]
        detections += [
            {"image_id": image, "category_id": int(c), "bbox": corner(b), "score": float(s)}
            for c, s, b in zip(labels, scores, boxes, strict=True)
        ]
    truth = COCO()
    truth.dataset = {
        "images": [{"id": i} for i in range(1, IMAGES + 1)],
        "categories": [{"id": i} for i in range(CLASSES)],
        "annotations": [{**x, "id": i + 1} for i, x in enumerate(objects)],
    }
    truth.createIndex()
    evaluation = COCOeval(truth, truth.loadRes(detections), "bbox")
    evaluation.params.maxDets = [7]
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[-1, 1e10]], ["all"]
    evaluation.params.iouThrs = np.array([iou])
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][0, :, :, 0, 0]
    return float(np.mean([x.mean() for x in precision.T if x[0] > -1]))


if __name__ == "__main__":
    print({iou: [by_pycocotools(seed, iou) for seed in range(5)] for iou in (0.5, 0.75)})
