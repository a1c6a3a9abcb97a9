"""pcl_loss against its formula in NumPy, its gradient, and the checks that its kernels make."""

import numpy as np
import pytest
import torch
from references import BOUNDS, each

import opd

PROPOSALS, CLASSES, CLUSTERS = 61, 6, 5
LABELS = ("labels", "gt_assignment", "pc_labels", "pc_count", "im_labels")
ORDER = ("pcl_probs", "labels", "cls_loss_weights", "gt_assignment", "pc_labels", "pc_probs",
         "pc_count", "img_cls_loss_weights", "im_labels")


def make(seed=0, n=PROPOSALS, c=CLASSES, p=CLUSTERS):
    """Consistent inputs: every proposal is background or has its cluster's label."""
    rng = np.random.default_rng(seed)
    values = {
        "pcl_probs": rng.uniform(0.05, 1, [n, c]),
        "cls_loss_weights": rng.uniform(0.1, 1, n),
        "gt_assignment": rng.integers(0, p, n),
        "pc_labels": rng.integers(1, c, p),
        "pc_probs": rng.uniform(0.05, 1, p),
        "img_cls_loss_weights": rng.uniform(0.1, 1, p),
        "im_labels": rng.integers(0, 2, c),
    }
    values["im_labels"][:2] = 1
    values["labels"] = np.where(rng.random(n) < 0.5, values["pc_labels"][values["gt_assignment"]], 0)
    values["pc_count"] = 1 + np.bincount(values["gt_assignment"][values["labels"] > 0], minlength=p)
    return values


def formula(v, grad_loss):
    """The loss and grad_pcl_probs, class by class, as operators of this kind are published."""
    n, c = v["pcl_probs"].shape
    loss, grad = 0.0, np.zeros([n, c])
    for k in range(c):
        if not v["im_labels"][k]:
            continue
        for i in range(n):
            if v["labels"][i] != k:
                continue
            p = v["gt_assignment"][i]
            if k == 0:
                loss -= v["cls_loss_weights"][i] * np.log(v["pcl_probs"][i, 0])
                grad[i, k] = -v["cls_loss_weights"][i] / v["pcl_probs"][i, 0]
            else:
                grad[i, k] = -v["img_cls_loss_weights"][p] / (v["pc_count"][p] * v["pc_probs"][p])
        for p in range(len(v["pc_labels"])):
            if k > 0 and v["pc_labels"][p] == k:
                loss -= v["img_cls_loss_weights"][p] * np.log(v["pc_probs"][p])
    return loss / n, grad * grad_loss / n


def send(client, values, dtype, labels="int64"):
    """labels: the dtype of label-like inputs, or one for each."""
    kinds = dict(zip(LABELS, labels)) if isinstance(labels, tuple) else dict.fromkeys(LABELS, labels)
    return [client.tensor(torch.tensor(values[name]).to(getattr(torch, kinds.get(name, dtype))),
                          dtype=kinds.get(name, dtype)) for name in ORDER]


def rounded(values, dtype):
    return {name: v if name in LABELS else
            torch.tensor(v).to(getattr(torch, dtype)).double().numpy() for name, v in values.items()}


@pytest.mark.parametrize("dtype", each(BOUNDS))
@pytest.mark.parametrize("labels", ("int64", "int32", "float32", "float64", "bfloat16",
                                    ("int32", "int64", "float32", "float64", "int32")), ids=str)
def test_against_the_formula(client, dtype, labels, record_worst):
    for seed, (n, c, p) in enumerate([(PROPOSALS, CLASSES, CLUSTERS), (1, 2, 1), (300, 21, 40)]):
        values = rounded(make(seed, n, c, p), dtype)
        loss, ctx = client.ops.pcl_loss.forward(*send(client, values, dtype, labels))
        (grad, *others) = ctx.backward(client.tensor(np.float64(-1.5), dtype=dtype))
        assert not any(others) and loss.shape == () and loss.dtype == dtype
        expected, expected_grad = formula(values, -1.5)
        error = abs(float(loss.numpy()) - expected) / abs(expected)
        record_worst("pcl_loss", dtype, "forward", error)
        assert error <= BOUNDS[dtype]
        found = grad.numpy().astype(np.float64)
        error = np.linalg.norm(found - expected_grad) / np.linalg.norm(expected_grad)
        record_worst("pcl_loss", dtype, "grad_pcl_probs", error)
        assert error <= BOUNDS[dtype]
        assert np.array_equal(found == 0, expected_grad == 0)


def test_no_clusters(client):
    values = make()
    values["labels"][:] = 0
    for name in ("pc_labels", "pc_probs", "pc_count", "img_cls_loss_weights"):
        values[name] = values[name][:0]
    loss = client.ops.pcl_loss(*send(client, values, "float64"))
    assert np.isclose(loss.numpy(), formula(values, 1)[0], rtol=1e-12)


def test_background_needs_no_cluster(client):
    values = make()
    values["gt_assignment"][values["labels"] == 0] = -1
    loss, ctx = client.ops.pcl_loss.forward(*send(client, values, "float64"))
    expected, grad = formula(values, 1)
    assert np.isclose(loss.numpy(), expected, rtol=1e-12)
    assert np.allclose(ctx.backward(np.float64(1))[0].numpy(), grad, rtol=1e-12)


@pytest.mark.parametrize("beyond", (-1, CLUSTERS, 2**40))
def test_cluster_out_of_range(client, beyond):
    values = make()
    first, second = np.flatnonzero(values["labels"])[[3, 5]]
    values["gt_assignment"][[second, first]] = beyond
    with pytest.raises(opd.InvalidArgument,
                       match=rf"pcl_loss: gt_assignment\[{first}\] is none of the 5 clusters, "
                             "expected a whole number from 0 to 4"):
        client.ops.pcl_loss(*send(client, values, "float32")).numpy()
    assert client.ops.pcl_loss(*send(client, make(), "float32")).numpy() > 0  # the device goes on


# Where pc_labels agrees with a wrong label, nothing but its range tells.
WRONG_NUMBERS = (-1, CLASSES, 2**40, 0.5, 1.5, -0.5, np.nan, np.inf, 1e30)


@pytest.mark.parametrize("wrong", WRONG_NUMBERS)
def test_numbers_that_are_no_class_or_cluster(client, wrong):
    dtype = "int64" if isinstance(wrong, int) else "float64"

    def refuse(change, message):
        values = {name: v.astype(dtype) if name in LABELS else v for name, v in make().items()}
        values["pc_labels"][4], values["gt_assignment"][7], values["labels"][7] = 3, 4, 3
        change(values)
        with pytest.raises(opd.InvalidArgument, match=f"^pcl_loss: {message}"):
            client.ops.pcl_loss(*send(client, values, "float32", dtype)).numpy()

    def both(values):
        values["labels"][values["gt_assignment"] == 4] = values["pc_labels"][4] = wrong

    first = np.flatnonzero(make()["gt_assignment"] == 4)[0]
    expected = r"is none of the 6 classes, expected a whole number from 0 to 5$"
    refuse(lambda v: v["labels"].__setitem__(7, wrong), rf"labels\[7\] {expected}")
    refuse(both, rf"labels\[{min(first, 7)}\] {expected}")
    refuse(lambda v: v["pc_labels"].__setitem__(4, wrong), rf"pc_labels\[4\] {expected}")
    if wrong != CLASSES:
        refuse(lambda v: v["gt_assignment"].__setitem__(7, wrong),
               r"gt_assignment\[7\] is none of the 5 clusters, expected a whole number from 0 to 4: "
               r"labels\[7\] is not background$")


def test_a_background_assignment_is_not_read(client):
    values = make()
    values["gt_assignment"] = np.where(values["labels"] == 0, np.nan, values["gt_assignment"])
    loss, ctx = client.ops.pcl_loss.forward(*send(client, values, "float64", "float64"))
    values["gt_assignment"] = np.nan_to_num(values["gt_assignment"]).astype(np.int64)
    expected, grad = formula(values, 1)
    assert np.isclose(loss.numpy(), expected, rtol=1e-12)
    assert np.allclose(ctx.backward(np.float64(1))[0].numpy(), grad, rtol=1e-12)


def test_a_cluster_that_no_proposal_has(client):
    """Its label counts all the same."""
    values = make()
    values["pc_labels"][4] = -1
    values["labels"][values["gt_assignment"] == 4] = 0
    with pytest.raises(opd.InvalidArgument, match=r"pc_labels\[4\] is none of the 6 classes"):
        client.ops.pcl_loss(*send(client, values, "float32")).numpy()


def test_label_that_is_not_the_clusters(client):
    values = make()
    at = np.flatnonzero(values["labels"])[4]
    values["labels"][at] = values["labels"][at] % (CLASSES - 1) + 1
    with pytest.raises(opd.InvalidArgument,
                       match=rf"labels\[{at}\] is not pc_labels\[gt_assignment\[{at}\]\]"):
        client.ops.pcl_loss(*send(client, values, "float32", "float32")).numpy()


def test_errors(client):
    good = send(client, make(), "float32")
    with pytest.raises(opd.InvalidArgument, match="expected at least one proposal and class"):
        client.ops.pcl_loss(*send(client, make(n=0), "float32"))
    with pytest.raises(opd.InvalidArgument, match="im_labels has 7 in dimension 0, expected C = 6"):
        client.ops.pcl_loss(*good[:-1], client.zeros([7], dtype="int64"))
    with pytest.raises(opd.InvalidArgument, match="labels is int8"):
        client.ops.pcl_loss(good[0], client.zeros([PROPOSALS], dtype="int8"), *good[2:])
    with pytest.raises(opd.InvalidArgument, match="pc_probs is float64, pcl_probs is float32"):
        client.ops.pcl_loss(*good[:5], client.zeros([CLUSTERS], dtype="float64"), *good[6:])
