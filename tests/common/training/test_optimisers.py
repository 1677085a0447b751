"""Many users' optimisers at once against torch.optim, one user after the other."""

from __future__ import annotations

import pytest
import torch
from fedrec.training.optimisers import SGD, Adam, LazyRows, SteppedRows

N_USERS, WIDTH, DIM, N_STEPS = 5, 7, 3, 15
CHOICES = [(SGD, torch.optim.SGD), (Adam, torch.optim.Adam)]


def drawn(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def taking_at(step):
    """User 0 always takes part, user 1 never, the others now and then."""
    taking = drawn(100 + step, N_USERS) > 0
    taking[0], taking[1] = True, False
    return taking


@pytest.mark.parametrize(("ours", "theirs"), CHOICES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(N_USERS,), (N_USERS, 4), (N_USERS, 2, 3)])
def test_each_users_tensor_moves_as_with_an_optimiser_of_its_own(ours, theirs, decay, shape):
    values = drawn(1, *shape)
    parameters = [torch.nn.Parameter(row.clone()) for row in values]
    moving = [theirs([parameter], lr=0.1, weight_decay=decay) for parameter in parameters]
    own = ours(0.1, decay)
    for step in range(N_STEPS):
        taking = taking_at(step)
        gradient = drawn(2 + step, *shape) * taking.view(-1, *[1] * (len(shape) - 1))
        own.step(values, gradient, taking)
        for user in torch.nonzero(taking)[:, 0].tolist():
            parameters[user].grad = gradient[user].clone()
            moving[user].step()
    expected = torch.stack([parameter.detach() for parameter in parameters])
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("ours", "theirs"), CHOICES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rows_move_as_in_a_dense_table_where_most_gradients_are_zero(ours, theirs, decay):
    rows = drawn(3, N_USERS * WIDTH, DIM)
    tables = [torch.nn.Parameter(table.clone()) for table in rows.view(N_USERS, WIDTH, DIM)]
    moving = [theirs([table], lr=0.1, weight_decay=decay) for table in tables]
    optimiser = ours(0.1, decay)
    own = (
        LazyRows(N_USERS, WIDTH, rows.device, optimiser)
        if ours is SGD
        else SteppedRows(N_USERS, optimiser)
    )
    for step in range(N_STEPS):
        taking = taking_at(step)
        generator = torch.Generator().manual_seed(step)
        # The first row comes up rarely, the last one never; some come twice in a minibatch.
        least = 0 if step in (3, 12) else 1
        place = torch.randint(least, WIDTH - 1, (N_USERS, 4), generator=generator)
        place[~taking] = 0
        pair = (place + WIDTH * torch.arange(N_USERS)[:, None]).view(-1)
        found = own.read(rows, pair)
        expected = torch.cat([table.detach()[place[user]] for user, table in enumerate(tables)])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
        # A gradient that depends on the value, so that whatever is wrong grows.
        gradient = (0.5 * found + drawn(step, len(pair), DIM)) * taking.repeat_interleave(4)[
            :, None
        ]
        own.step(rows, pair, gradient, taking)
        for user in torch.nonzero(taking)[:, 0].tolist():
            dense = torch.zeros(WIDTH, DIM, dtype=torch.float64)
            dense.index_add_(0, place[user], gradient.view(N_USERS, 4, DIM)[user])
            tables[user].grad = dense
            moving[user].step()
    own.finish(rows)
    expected = torch.cat([table.detach() for table in tables])
    torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-13)
    again = rows.clone()
    own.finish(rows)
    assert torch.equal(rows, again)
