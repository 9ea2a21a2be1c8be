"""An admin app over a real store, keys and tokens; what the daemon provides is a few plain values."""

from collections.abc import Mapping
from typing import Any

from attrs import define, evolve, field
from quart import Response
from quart_trio import QuartTrio

from llmgw.admin.app import make_app
from llmgw.admin.services import AdminServices, Applied, AppSettings, LeaderServices
from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.identity import Declined, Operator, Role
from llmgw.core.lease_facts import Addresses
from llmgw.store.sqlite import SqliteStore
from llmgw.telemetry.metrics import Metrics
from llmgw.telemetry.traffic import traffic_json
from tests.clusters import Plane

EXPLAINED = Explanation(
    "request req-1",
    "answered by a",
    (Fact("it was free", 2.0),),
    (Considered("a", True, scores={"load": 0.5}), Considered("b", reasons=("breaker: open",))),
    ("b recovers",),
    "llmgw ctl endpoints",
)


@define(eq=False)
class Desk:
    store: SqliteStore
    keys: Keys
    tokens: Tokens
    shown: Mapping[Role, str]
    plane: Plane
    not_ready: str | None = None
    standby_of: Addresses | None = None  # who leads instead of us
    metrics: Metrics = field(factory=Metrics)
    resigned: list[tuple[str, str]] = field(factory=list)
    reported: list[tuple[str, str, BaseException | None]] = field(factory=list)
    asked: list[Mapping[str, Any]] = field(factory=list)

    def services(self) -> AdminServices:
        return AdminServices(
            keys=self.keys,
            tokens=self.tokens,
            store=self.store,
            metrics_text=lambda: (b"llmgw_up 1\n", b"llmgw_two 2\n"),
            ready=lambda model: self.not_ready,
            model_names=lambda: frozenset({"llama"}),
            models=lambda seen=None: [{"name": "llama"}],
            endpoints=lambda: [{"id": "a"}],
            pools=lambda model: iter([{"model": "llama"}]) if model in ("", "llama") else None,
            queues=lambda model: iter([[{"model": "llama", "band": "gold"}]]) if model in ("", "llama") else None,
            shadow=lambda: ("shadow", []),
            seats=lambda: [{"band": "gold", "waiting": 3}],
            requests=self.requests,
            request=lambda id: {"id": id} if id == "req-1" else None,
            traffic=lambda: (999_000.0, traffic_json(self.metrics.pairs())),
            running=lambda model, endpoint, limit: [{"id": "req-1", "phase": "sent"}],
            cancel=lambda id, by, why: id == "req-1",
            explain_request=lambda id: EXPLAINED if id == "req-1" else None,
            explain_queue=lambda model: EXPLAINED if model in ("llama", "meta/llama") else None,
            status=lambda: {"ready": True},
            config=lambda: {"admin": {"metrics_token": "***"}},
            apply=self.apply,
            now=lambda: 1_000_000.0,
            cluster=self.plane.services(),
            leadership=LeaderServices(
                standby_of=lambda: self.standby_of,
                refresh=self.refresh,
                told=lambda: {"role": "leading", "term": "0.7"},
                explain=lambda: EXPLAINED,
                resign=self.resign,
            ),
            report=lambda *what: self.reported.append(what),
        )

    async def refresh(self) -> float:
        return 0.25

    async def resign(self, by: Operator, why: str) -> dict[str, Any] | Declined:
        if why == "alone":
            return Declined("alone", "nobody else could lead", "start another control plane")
        self.resigned.append((by.name, why))
        return {"resigned": "0.7"}

    def requests(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(wanted)
        return [{"id": "req-1"}]

    async def apply(self, text: str, by: Operator, file: str, why: str, dry: bool) -> Applied:
        if text == "boom":
            raise RuntimeError("a secret that must not be told")
        if text == "same":
            return Applied(7)
        return Applied(problems=(f"{file}:models: there are none",)) if not text else Applied(7, ("model m added",))

    def app(self, services: AdminServices | None = None, **settings: Any) -> QuartTrio:
        return make_app(services or self.services(), evolve(AppSettings("127.0.0.1"), **settings))

    def bearer(self, role: Role) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.shown[role]}"}


async def ask(
    app: QuartTrio, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """One request, of JSON where the headers do not say otherwise, without a socket."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    answer = await app.test_client().open(path, method=method, headers=sent, **more)
    assert isinstance(answer, Response)
    return answer
