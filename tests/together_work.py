"""What ranks do in tests; a module of its own, so that a new process can import it."""

import os
import signal
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from nngk.bank import refresh
from nngk.bank.ailments import ailment
from nngk.bank.centres import CentreBank
from nngk.bank.sharded import ShardedBank
from nngk.data import read_images, split
from nngk.errors import InputError
from nngk.gallery import filling, open_gallery
from nngk.metrics import evaluate
from nngk.model import Model
from nngk.ranks import speaks
from nngk.search import Exact, create_engine
from nngk.search.ring import ring_answers
from nngk.training import loop
from nngk.training.build import build_run
from nngk.training.distributed import distributed, join, joined_ranks, share_of
from nngk.training.settings import Settings
from nngk.training.sharded_network import in_full
from nngk.training.validation import validate


@contextmanager
def computing(kind):
    """Compute in a type of this name: in float64 rounding cannot hide, nor excuse, that ranks do something else."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, kind))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def moved_weights(seed):
    """Let runs begin with each weight at a neighbouring number, above or below: what rounding does, once. 0: as is."""
    build_as_is = loop.build_run

    def build_moved(*given, **named):
        run, generator = build_as_is(*given, **named), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in run.network.parameters():
                up = torch.rand(p.shape, generator=generator) < 0.5
                p.copy_(torch.nextafter(p, torch.where(up, torch.inf, -torch.inf).to(p)))
        return run

    loop.build_run = build_moved if seed else build_as_is
    try:
        yield
    finally:
        loop.build_run = build_as_is


def trained(photos, folder, values, kind="float32"):
    """Train in a folder; return what every step and every epoch had, as arrays."""
    with computing(kind):
        return _trained(photos, folder, values)


def _trained(photos, folder, values):
    """A refresh in the background runs beside one step, and is waited for at the next: when it is done is chance."""
    settings = Settings(**values)
    table = read_images(photos, task=settings.task, seed=settings.seed)
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    with joined_ranks(settings.device) as ranks:
        folder.mkdir(exist_ok=True)
        run = build_run(parts, settings, folder, ranks=ranks)
        run.begin()
        seen = {"loss": [], "gradients": [], "lists": [], "centres": [], "theta": [], "sigma": [], "scores": []}
        step = loop.take_step

        def watched(run, images, labels, indices):
            loss = step(run, images, labels, indices)
            seen["loss"].append(float(loss))
            groups, theta = run.optimiser.param_groups, run.bank.theta
            grads = {id(p): p.grad for group in groups for p in group["params"] if p.grad is not None}
            if run.bank.partial and id(theta) in grads:
                grads[id(theta)] = ranks.gather(theta.grad, len(run.bank))
            seen["gradients"].append(np.concatenate([in_full(g, ranks).flatten().numpy() for g in grads.values()]))
            return loss

        done, refresh._Pending.done = refresh._Pending.done, lambda pending: pending._thread.join() is None
        loop.take_step = watched
        try:
            for epoch in range(settings.epochs):
                loop.train_epoch(run, lambda: False, 0.0)
                run.objective.before_step(run.at.step, run.trainee)
                seen["scores"].append(list(validate(run)[0].values()))
                bank = run.bank.whole()
                seen["lists"].append(bank.neighbours.numpy().copy())
                seen["centres"].append(bank.centres.numpy().copy())
                seen["theta"].append(bank.theta.detach().numpy().copy())
                seen["sigma"].append(run.objective.sigma)
                run.at.epoch, run.at.batch = epoch + 1, 0
        finally:
            loop.take_step, refresh._Pending.done = step, done
        seen["staleness"] = [each.staleness for each in run.refresher.history]
        test = run.feed.test
        seen["metrics"] = list(evaluate(run.embed(test), test.labels, ks=(1, 2), nmi_seeds=3, ranks=ranks).values())
        if settings.optimiser == "sgd":  # AdamW makes much of what rounding leaves of a gradient of zero
            weights = [in_full(p.detach(), ranks).flatten().numpy() for p in run.network.parameters()]
            seen["weights"] = [np.concatenate(weights)]
        if ranks.count > 1 and settings.shard_network:
            assert_shared_out(run, ranks)
        return seen


def assert_shared_out(run, ranks):
    """Every rank holds its rows of each parameter, and moments of those rows alone."""
    for parameter in run.network.parameters():
        span = ranks.span(len(parameter))
        assert len(parameter.to_local()) == span.stop - span.start
        for value in run.optimiser.state[parameter].values():
            assert value.ndim == 0 or len(value.to_local()) == span.stop - span.start


def model_of(photos, out, values, resume=False, kind="float32"):
    """Train as a person does; return the number of centres."""
    settings = Settings(**values)
    table = read_images(photos, task=settings.task, seed=settings.seed)
    with computing(kind):
        return len(loop.train(table, settings, out=out, resume=resume).centres)


def stopped_after(photos, out, values, steps, kind="float32"):
    """Train until a person stops the first rank in a step; return whether the run was saved."""
    asked = 0

    @contextmanager
    def counted():
        def stopping():
            nonlocal asked
            asked += 1
            return asked == steps and speaks()

        yield stopping

    loop._stop_on_ctrl_c = counted
    try:
        model_of(photos, out, values, kind=kind)
    except loop.Interrupted:
        return (out / "run" / "checkpoint.json").exists()
    return False


def sharded_facts(m, dim, k, guaranteed, engine=""):
    """Put a sharded bank beside a whole one with the same rows; return what both say, and what was sent."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(m, dim, generator=generator)
    labels = torch.arange(m) % max(1, m // 2)  # the two members of a class are half of the bank apart
    batch = torch.randperm(m, generator=generator)[: min(m, 7)]
    x, theta = torch.randn(len(batch), dim, generator=generator), torch.randn(m, generator=generator)
    with joined_ranks("cpu") as ranks:
        whole, shard = CentreBank(labels, dim, k, guaranteed), ShardedBank(labels, dim, k, guaranteed, ranks=ranks)
        span = ranks.span(m)
        with torch.no_grad():
            whole.theta.copy_(theta)
            shard.theta.copy_(theta[span])
        whole.renew(points)
        kind = create_engine(engine, dim=dim, n=m, k=k) if engine else None
        ranks.traffic.sent.clear()
        shard.replace(points[span], *shard.lists(points[span], kind))
        sent = {"lists": dict(ranks.traffic.sent)}
        facts = {"lonely": (shard.n_lonely, whole.n_lonely), "rows": len(shard.centres)}
        facts["recall"] = shard.list_recall(points[span], shard.neighbours)
        facts["lists"] = shard.whole().neighbours.numpy(), whole.neighbours.numpy()
        facts["nearest"] = [bank.nearest(bank.centres, x, 3)[1].numpy() for bank in (shard, whole)]
        facts["ailments"] = [[ailment(bank, sigma) for sigma in (1e-3, 1.0)] for bank in (shard, whole)]
        facts["left out"] = [bank.left_out(torch.arange(0, m, 2))[0].numpy() for bank in (shard, whole)]
        if engine:
            return facts
        found = []
        for bank in (shard, whole):
            own, sigma = x.clone().requires_grad_(), torch.tensor(0.7, requires_grad=True)
            ranks.traffic.sent.clear()
            loss, learns = bank.neighbour_loss(own, sigma, bank.lists_of(batch), labels[batch], batch)
            loss.sum().backward()
            by_x, by_theta = (own.grad, bank.theta.grad)
            if bank is shard:
                sent["step"] = dict(ranks.traffic.sent)
                by_x, by_theta = ranks.sum(by_x), ranks.gather(by_theta, m)
            found.append([t.detach().numpy() for t in (loss, learns, by_x, by_theta, sigma.grad)])
        return facts | {"loss": found, "sent": sent, "batch": batch.tolist()}


def asked_ahead(m, k):
    """Ask a sharded bank for two batches, and for the second one again after the bank was renewed; return the lists
    that came, those of a whole bank, and how many bytes each way of asking sent."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randperm(m, generator=generator).chunk(2)
    with joined_ranks("cpu") as ranks:
        whole, shard = CentreBank(torch.arange(m) % 3, 4, k), ShardedBank(torch.arange(m) % 3, 4, k, ranks=ranks)
        span, found, expected, sent = ranks.span(m), [], [], []

        def renew():
            points = torch.randn(m, 4, generator=generator)
            whole.renew(points)
            shard.replace(points[span], *shard.lists(points[span]))
            ranks.traffic.sent.clear()

        def take(*asked, of):
            shard.ask_ahead(*asked)
            found.append(shard.lists_of(of).numpy())
            expected.append(whole.lists_of(of).numpy())
            sent.append(ranks.traffic.sent["gather"])

        renew()
        take(first, second, of=first)
        take(second, of=second)  # is on its way already
        take(first, second, of=first)
        renew()
        take(second, of=second)  # what was on its way is not of this bank
        take(first, of=second)  # what is on its way is not what is wanted
        return found, expected, sent


def replicated_bytes(m, dim, k, guaranteed, batch):
    """Return the bytes that a rank sends for a step and a refresh of a whole bank, and the size of the network."""
    sent, x = {}, torch.randn(m, dim, generator=torch.Generator().manual_seed(0))
    with joined_ranks("cpu") as ranks:

        def counted(name, work):
            ranks.traffic.sent.clear()
            found = work()
            sent[name] = dict(ranks.traffic.sent)
            return found

        bank = CentreBank(torch.arange(m) % 4, dim, k, guaranteed)
        counted("centres", lambda: ranks.gather(x[ranks.span(m)], m))
        counted("lists", lambda: bank.lists(x, None, ranks))
        network, reduced = torch.nn.Linear(dim, dim), []
        stepping = distributed(network, ranks)

        def hook(group, bucket):
            reduced.append(bucket.buffer().nbytes)
            return default_hooks.allreduce_hook(group, bucket)

        stepping.register_comm_hook(None, hook)
        share = share_of(torch.arange(batch), ranks)
        joined = counted("embeddings", lambda: join(stepping(x[share]), batch, ranks))
        counted("backward", lambda: joined.sum().backward())
        return sent | {"gradients": sum(reduced), "network": sum(p.nbytes for p in network.parameters())}


def graph_lists(sizes, dim, k):
    """Return the lists of sharded banks of several sizes whose ranks each search a graph of their own rows."""
    found = []
    with joined_ranks("cpu") as ranks:
        for m in sizes:
            points = torch.randn(m, dim, generator=torch.Generator().manual_seed(m))
            shard = ShardedBank(torch.arange(m) % max(1, m // 2), dim, k, 0, ranks=ranks)
            own = points[ranks.span(m)]
            shard.replace(own, *shard.lists(own, create_engine("fanng", dim=dim, n=m, k=k)))
            found.append(shard.whole().neighbours.numpy())
    return found


def asked_of_engines(m, dim, k):
    """Return what asking an engine in each rank about the rows of all sent."""
    with joined_ranks("cpu") as ranks:
        own = torch.randn(m, dim, generator=torch.Generator().manual_seed(0))[ranks.span(m)]
        ranks.traffic.sent.clear()
        ranks.traffic.messages.clear()
        ring_answers(own, Exact(own), m, k, ranks)
        return dict(ranks.traffic.sent), dict(ranks.traffic.messages)


def filled(model, photos, folder, rounds=None):
    """Embed photos into a gallery, two in each rank at a time; the last rank is killed before it embeds again after so
    many rounds. Return how many were new and how many there already, or what was said."""
    filling.AT_ONCE = 2
    with joined_ranks("cpu") as ranks:
        embedded, done = filling._embedded, 0

        def mortal(*arguments):
            nonlocal done
            if ranks.rank == ranks.count - 1 and done == rounds:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return embedded(*arguments)

        filling._embedded = mortal
        m = Model.load(model)
        with open_gallery(str(folder), m, write=True) if ranks.first else nullcontext() as gallery:
            return filling.fill_with_images(gallery, m, read_images(photos), ranks)


def left_alone(*arguments):
    """Return what is said to a rank when another one has died."""
    try:
        return filled(*arguments)
    except InputError as error:
        return str(error)
