"""Proposal cluster learning: which of a picture's regions show the object, told by its label alone.

A toy of the method that pcl_loss is from (Tang et al., "PCL: Proposal Cluster Learning for Weakly
Supervised Object Detection"): each picture has 40 proposals, some of which overlap an object of the
class that the picture's label names; nothing says which. The proposals with the highest scores are
taken as centres of clusters, their neighbours join them, the rest is background, and pcl_loss pulls
the scores towards that. What is learnt is checked against what the picture was made from.

    PYTHONPATH=client/python python3 examples/pcl.py
"""

import sys

import torch

import opd.torch
from _daemon import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, CLASSES, FEATURES = 40, 4, 16  # class 0 is the background


def make_picture(prototypes):
    """Features [N, F] of the proposals, where each lies, the picture's class, which show it."""
    label = int(torch.randint(1, CLASSES, ()))
    place = torch.rand(N)
    centre = 0.2 + 0.6 * torch.rand(())
    overlap = (1 - (place - centre).abs() / 0.1).clamp(min=0)
    features = prototypes[0] + overlap[:, None] * prototypes[label]
    return features + 0.3 * torch.randn(N, FEATURES), place, label, overlap > 0.2


def make_clusters(probs, place, label):
    """The arguments of pcl_loss after the probabilities: one cluster for the object, and the rest."""
    scores = probs[:, label].detach().cpu()
    best = int(scores.argmax())
    member = (place - place[best]).abs() < 0.05
    weight = scores[best]
    labels = torch.where(member, label, 0)
    assignment = torch.where(member, 0, -1)
    mean = scores[member].mean()
    im_labels = torch.zeros(CLASSES, dtype=torch.int64)
    im_labels[[0, label]] = 1
    arrays = [
        labels,
        weight.expand(N).contiguous(),  # cls_loss_weights
        assignment.clamp(min=0),  # gt_assignment; background's is not read
        torch.tensor([label]),  # pc_labels
        mean[None],  # pc_probs
        member.sum()[None].float(),  # pc_count
        weight[None] * member.sum(),  # img_cls_loss_weights
        im_labels,
    ]
    return [a.to(DEVICE) for a in arrays]


def main():
    with serve() as client:
        opd.torch.use(client)
        torch.manual_seed(0)
        prototypes = torch.randn(CLASSES, FEATURES)
        model = torch.nn.Linear(FEATURES, CLASSES).to(DEVICE)
        loss_of = opd.torch.PCLLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        hits, total = 0, 0.0
        for step in range(1, 601):
            features, place, label, shows = make_picture(prototypes)
            probs = model(features.to(DEVICE)).softmax(1).clamp(1e-4, 1 - 1e-4)
            loss = loss_of(probs, *make_clusters(probs, place, label))
            other = [c for c in range(1, CLASSES) if c != label]
            # The picture's label: some proposal shows its class, none another.
            loss = loss - probs[:, label].max().log() - (1 - probs[:, other].max(0).values).log().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += bool(shows[probs[:, label].argmax().item()])
            total += loss.item()
            if step % 100 == 0:
                print(f"to step {step}: loss {total / 100:.3f}, the best proposal shows the object in {hits} %")
                last, hits, total = hits, 0, 0.0
        if last < 90:
            sys.exit("the objects were not found")


if __name__ == "__main__":
    main()
