"""The dashboard's addresses. Every one is read-only, and names runs by ids that the catalogue gave them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException as StarletteError

from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.report.dashboard import pages
from crossward.report.dashboard.access import Access, Gate
from crossward.report.dashboard.catalogue import ListedRun
from crossward.report.dashboard.contained import stamp
from crossward.report.dashboard.live_charts import live_charts
from crossward.report.dashboard.report_queue import MadeReport, ReportQueue
from crossward.report.dashboard.run_view import drawn_sites, selected_metric, site_names
from crossward.report.dashboard.watch import Watch
from crossward.runs.run_list import config_differences

ID = r"^[0-9a-f]{16}$"
MOST_COMPARED = 100
MOST_STREAMS = 50
RETRY = 2000  # milliseconds after which a page connects again
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)  # the report's own policy, within the page, allows its scripts and its style by their hashes and nothing else

RunId = Annotated[str, InPath(pattern=ID)]
AskedIds = Annotated[list[str], Query(alias="run", min_length=1, max_length=MOST_COMPARED)]


def make_app(watch: Watch, access: Access) -> Gate:
    """The application behind its gate; the folder is looked at when somebody asks."""
    reports = ReportQueue()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(watch.keep_looking())
        yield
        looking.cancel()
        reports.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(StarletteError, _not_found)
    app.add_exception_handler(RequestValidationError, _not_found)
    app.add_exception_handler(StorageError, _cannot_read)
    _add_pages(app, watch)
    _add_documents(app, watch)
    _add_reports(app, watch, reports)
    _add_streams(app, watch)
    return Gate(app, access)


def _add_pages(app: FastAPI, watch: Watch) -> None:
    @app.get("/")
    def list_page() -> HTMLResponse:
        return HTMLResponse(pages.list_page(printable(str(watch.catalogue.root), 300)))

    @app.get("/favicon.ico")
    def icon() -> Response:
        return Response(status_code=204)  # browsers ask for one

    @app.get("/assets/{name}")
    def asset(name: str) -> Response:
        known = pages.assets().get(name)
        if known is None:
            raise HTTPException(404)
        content, kind = known
        return Response(content, media_type=kind, headers={"cache-control": "private, max-age=300"})

    @app.get("/run/{id}")
    def run_page(id: RunId) -> HTMLResponse:
        run = _run(watch, id)
        about = watch.about(run)
        sites = drawn_sites(site_names(about.get("sites")))
        planned = run.entry.planned if isinstance(run.entry.planned, int) else None
        charts = live_charts(printable(selected_metric(run)[0], 60), planned, sites)
        return HTMLResponse(pages.run_page(run, watch.catalogue.name_of(run.folder), charts, about))

    @app.get("/run/{id}/federation")
    def federation_page(id: RunId) -> HTMLResponse:
        run = _run(watch, id)
        return HTMLResponse(pages.federation_page(run, watch.catalogue.name_of(run.folder)))

    @app.get("/differences")
    def differences_page(run: AskedIds) -> HTMLResponse:
        if len(run) != 2:
            raise HTTPException(404)
        picked = [_run(watch, id) for id in run]
        shown = _differences(picked[0].folder, picked[1].folder)
        return HTMLResponse(pages.differences_page([watch.catalogue.name_of(each.folder) for each in picked], shown))


def _add_documents(app: FastAPI, watch: Watch) -> None:
    @app.get("/api/runs")
    def runs_document() -> JSONResponse:
        watch.look_if_stale()
        return JSONResponse(watch.list_document())

    @app.get("/api/run/{id}")
    def run_document(id: RunId) -> JSONResponse:
        return JSONResponse(watch.run_document(_run(watch, id).id))


def _add_reports(app: FastAPI, watch: Watch, reports: ReportQueue) -> None:
    @app.get("/report")
    def report_of_runs(run: AskedIds) -> HTMLResponse:
        return _report_response(reports.report([_run(watch, id).folder for id in dict.fromkeys(run)]))

    @app.get("/run/{id}/report")
    def report_of_run(id: RunId) -> HTMLResponse:
        return _report_response(reports.report([_run(watch, id).folder]))

    @app.get("/study/{id}/report")
    def report_of_study(id: RunId) -> HTMLResponse:
        watch.look_if_stale()
        study = watch.catalogue.studies.get(id)
        if study is None:
            raise HTTPException(404)
        return _report_response(reports.report([study.folder]))


def _add_streams(app: FastAPI, watch: Watch) -> None:
    def open_stream() -> None:
        if watch.viewers >= MOST_STREAMS:
            raise HTTPException(503)

    def known_run(id: RunId) -> str:
        return _run(watch, id).id

    @app.get("/events/runs", response_class=EventSourceResponse, dependencies=[Depends(open_stream)])
    async def runs_stream() -> AsyncIterator[ServerSentEvent]:
        async for document in watch.list_stream():
            yield ServerSentEvent(data=document, event="runs", retry=RETRY)

    @app.get("/events/run/{id}", response_class=EventSourceResponse, dependencies=[Depends(open_stream)])
    async def run_stream(run: str = Depends(known_run)) -> AsyncIterator[ServerSentEvent]:
        async for document in watch.run_stream(run):
            yield ServerSentEvent(data=document, event="run", retry=RETRY)


def _run(watch: Watch, id: str) -> ListedRun:
    if id not in watch.catalogue.runs:
        watch.look_if_stale()
    run = watch.catalogue.runs.get(id)
    if run is None:
        raise HTTPException(404)
    return run


def _differences(one: Path, other: Path) -> list[tuple[str, str, str]]:
    """The settings in which two runs differ, as text."""
    for folder in (one, other):
        stamp(folder, ("run.json",))
    try:
        found = config_differences(one, other)
    except (TypeError, AttributeError, ValueError):
        raise StorageError("a run.json is not as crossward writes it") from None
    return [(printable(key, 200), _value(first), _value(second)) for key, first, second in found]


def _value(value: Any) -> str:
    """As in a configuration; a dash if it is not set."""
    if value is None:
        return "–"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _report_response(made: MadeReport | None) -> HTMLResponse:
    if made is None:
        words = "This takes from a few seconds to a minute. The page comes by itself."
        return HTMLResponse(pages.message_page("The report is being made", words, wait=True), 202)
    if made.problem:
        return HTMLResponse(pages.message_page("There is no report", printable(made.problem)), 409)
    return HTMLResponse(made.html, headers={"content-security-policy": REPORT_POLICY})


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, StarletteError) else 404
    if status == 503:
        return HTMLResponse(pages.message_page("Too many pages are open", "Close some of this dashboard's pages."), 503)
    words = "It may have been removed or renamed. The list shows what is there now."
    return HTMLResponse(pages.message_page("There is no such page", words), status)


async def _cannot_read(request: Request, error: Exception) -> Response:
    words: Sequence[str] = [error.what] if isinstance(error, StorageError) else []
    return HTMLResponse(pages.message_page("This run cannot be read", printable(" ".join(words))), 409)
