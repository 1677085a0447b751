"""Layouts of data sets that people have: what is proposed reads the right columns, or nothing is.

Each file has the rows of 12 users with 8 of 23 items each, written as the data set's own files are.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from .test_proposed_commands import proposed_by, readings_of

Row = Callable[[int, int, int, int], object]
"""Returns a row of a user, an item, the user's how many-th row it is, and the row's number."""

NONE = "none"
SEVERAL = "one of: "
"""Nothing is chosen; one of the readings has these columns."""


def key(kind: str, number: int, size: int = 24) -> str:
    return sha256(f"{kind}{number}".encode()).hexdigest()[:size]


def stars(user: int, item: int) -> int:
    return user * item % 5 + 1


def seconds(user: int, place: int) -> int:
    return 1_541_030_400 + user * 86_400 * 3 + place * 90_061


def when(user: int, place: int, form: str = "%Y-%m-%d") -> str:
    return datetime.fromtimestamp(seconds(user, place), UTC).strftime(form)


def content_of(header: str, row: Row, n_users: int = 12, n_each: int = 8) -> str:
    """Return a file's text: a row that is no text is one of JSON."""
    lines = [header] if header else []
    for user in range(1, n_users + 1):
        for place in range(n_each):
            item = (user * 3 + 7 * place) % 23 + 1
            found = row(user, item, place, len(lines) - bool(header))
            lines.append(found if isinstance(found, str) else json.dumps(found))
    return "".join(f"{line}\n" for line in lines)


ISO = "%Y-%m-%dT%H:%M:%SZ"
TWITTER, UTC_FORM = "%a %b %d %H:%M:%S +0000 %Y", "%Y-%m-%d %H:%M:%S UTC"

LAYOUTS: dict[str, tuple[str, str, Row, str]] = {
    # The file's name, its header, its rows, and the columns of user, item and time.
    "Gowalla": (
        "Gowalla_totalCheckins.txt", "",
        lambda u, i, k, n: f"{u}\t{when(u, k, ISO)}\t{30 + i / 97}\t-97.5\t{i + 99}",
        "1 5 2",
    ),
    "Brightkite": (
        "b.txt", "",
        lambda u, i, k, n: f"{u}\t{when(u, k)}\t{39 + i / 97}\t-104.{i}\t{key('place', i)}",
        "1 5 2",
    ),
    "Foursquare": (
        "dataset_TSMC2014_NYC.txt", "",
        lambda u, i, k, n: f"{u}\t{key('v', i)}\t{key('c', i % 5)}\tKind {i % 5}\t40.{i}\t-74.{i}\t"
        f"-240\t{when(u, k, TWITTER)}",
        SEVERAL + "1 2 8",
    ),
    "Foursquare with names": (
        "f.csv", "userId,venueId,venueCategoryId,latitude,timezoneOffset,utcTimestamp",
        lambda u, i, k, n: f"{u},{key('v', i)},{key('c', i % 5)},40.{i},-240,{when(u, k, TWITTER)}",
        "userId venueId utcTimestamp",
    ),
    "Last.fm 360K": (
        "usersha1-artmbid-artname-plays.tsv", "",
        lambda u, i, k, n: f"{key('u', u, 40)}\t{key('a', i, 36)}\tart {i}\t{3000 // (k + 1) - u}",
        "1 2 -",
    ),
    "Last.fm of HetRec": (
        "user_artists.dat", "userID\tartistID\tweight",
        lambda u, i, k, n: f"{u}\t{i}\t{3000 // (k + 1) - u}",
        "userID artistID -",
    ),
    "Last.fm scrobbles of one person": (
        "scrobbles.csv", "uts,utc_time,artist,artist_mbid,album,track,track_mbid",
        lambda u, i, k, n: f"{seconds(u, k)},\"{when(u, k, '%d %b %Y, %H:%M')}\",A{i % 5},"
        f"{key('a', i % 5)},L{i % 9},T {i},",
        NONE,
    ),
    "Amazon 2014": (
        "ratings_Books.csv", "",
        lambda u, i, k, n: f"A{u + 10**11}Q,B000{i:02}N7P0,{stars(u, i)}.0,{seconds(u, k)}",
        "1 2 4",
    ),
    "Amazon 2018, whose items stand first": (
        "Books.csv", "",
        lambda u, i, k, n: f"B000{i:02}N7P0,A{u + 10**11}Q,{stars(u, i)}.0,{seconds(u, k)}",
        "2 1 4",
    ),
    "Amazon in JSON": (
        "reviews.json", "",
        lambda u, i, k, n: {
            "reviewer": f"A{u + 10**11}", "product": f"B000{i:02}N7P0", "helpful": [0, 1],
            "overall": float(stars(u, i)), "reviewTime": when(u, k, "%m %d, %Y"),
        },
        "reviewer product reviewTime",
    ),
    "Yelp": (
        "review.json", "",
        lambda u, i, k, n: {
            "review_id": key("r", n), "user_id": key("u", u), "business_id": key("b", i),
            "stars": float(stars(u, i)), "useful": k % 3, "date": when(u, k),
        },
        "user_id business_id date",
    ),
    "Goodreads, with two times": (
        "goodreads.json", "",
        lambda u, i, k, n: {
            "user_id": key("u", u), "book_id": f"{1000 + i}", "review_id": key("r", n),
            "rating": stars(u, i), "date_added": when(u, k, TWITTER),
            "date_updated": when(u, k + 2, TWITTER), "read_at": "",
        },
        SEVERAL + "user_id book_id date_added",
    ),
    "Book-Crossing": (
        "BX-Book-Ratings.csv", '"User-ID";"ISBN";"Book-Rating"',
        lambda u, i, k, n: f'"{276700 + u}";"03454510{i:02}X";"{stars(u, i)}"',
        "User-ID ISBN -",
    ),
    "Steam 200K": (
        "steam-200k.csv", "",
        lambda u, i, k, n: f'{151603700 + u},"Game {i}",{["purchase", "play"][k % 2]},{k + 1.5},0',
        "1 2 -",
    ),
    "RetailRocket": (
        "events.csv", "timestamp,visitorid,event,itemid,transactionid",
        lambda u, i, k, n: f"{seconds(u, k)}000,{257597 + u},view,{3559 + i},{n if k == 7 else ''}",
        "visitorid itemid timestamp",
    ),
    "Otto": (
        "otto.csv", "session,aid,ts,type",
        lambda u, i, k, n: f"{u},{59625 + i},{seconds(u, k)},{k % 3}",
        "session aid ts",
    ),
    "H&M": (
        "transactions_train.csv", "t_dat,customer_id,article_id,price,sales_channel_id",
        lambda u, i, k, n: f"{when(u, k)},{key('u', u)},{663713001 + i},0.0{i},{1 + k % 2}",
        "customer_id article_id t_dat",
    ),
    "Instacart's orders, without items": (
        "orders.csv", "order_id,user_id,eval_set,order_number,order_dow,order_hour_of_day",
        lambda u, i, k, n: f"{2539329 + n * 7},{u},prior,{k + 1},{(u + k) % 7},{u * k % 24}",
        NONE,
    ),
    "Instacart's products, without users": (
        "order_products.csv", "order_id,product_id,add_to_cart_order,reordered",
        lambda u, i, k, n: f"{u},{33120 + i},{k + 1},{k % 2}",
        NONE,
    ),
    "Online Retail": (
        "OnlineRetail.csv",
        "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country",
        lambda u, i, k, n: f"{536365 + u * 2 + k // 4},851{i:02}A,ITEM {i},{6 + k},"
        f"{when(u, k // 4, '%m/%d/%Y %H:%M')},{2.55 + i},{17800 + u}.0,France",
        "CustomerID StockCode InvoiceDate",
    ),
    "invoices without names": (
        "invoices.csv", "",
        lambda u, i, k, n: f"{536365 + u * 2 + k // 4},851{i:02}A,{6 + k},"
        f"{when(u, k // 4, '%m/%d/%Y %I:%M %p')},{2.55 + i},{17800 + u}",
        SEVERAL + "6 2 4",
    ),
    "Jester": (
        "jester.txt", "",
        lambda u, i, k, n: f"{u}\t{100 + i}\t{((u * 37 + i * 91) % 2000) / 100 - 10:.2f}",
        "1 2 -",
    ),
    "Anime": (
        "rating.csv", "user_id,anime_id,rating",
        lambda u, i, k, n: f"{u},{100 + i},{stars(u, i) if k else -1}",
        "user_id anime_id -",
    ),
    "Netflix": (
        "netflix.csv", "",
        lambda u, i, k, n: f"{1488800 + u},{100 + i},{stars(u, i)},{when(u, k)}",
        "1 2 4",
    ),
    "Netflix with a row number": (
        "nf.csv", ",Cust_Id,Rating,Date,Movie_Id",
        lambda u, i, k, n: f"{n},{1488800 + u},{stars(u, i)},{when(u, k)},{i}",
        "Cust_Id Movie_Id Date",
    ),
    "Yoochoose": (
        "yoochoose-clicks.dat", "",
        lambda u, i, k, n: f"{u},{when(u, k, '%Y-%m-%dT%H:%M:%S.%fZ')},{214536500 + i},0",
        "1 3 2",
    ),
    "MIND, whose rows are lists": (
        "behaviors.tsv", "",
        lambda u, i, k, n: f"{n + 1}\tU{13740 + u}\t{when(u, k, '%m/%d/%Y %I:%M:%S %p')}\t"
        f"N{i} N4 N5\tN5{i}-1 N3-0",
        NONE,
    ),
    "clicks with 12 hours": (
        "clicks.csv", "",
        lambda u, i, k, n: f"U{u},N{i},{when(u, k, '%m/%d/%Y %I:%M:%S %p')}",
        "1 2 3",
    ),
    "pandas without names": (
        "all_data.csv", ",0,1,2",
        lambda u, i, k, n: f"{n},{u},{i},{stars(u, i) * 100}.0",
        "0 1 -",
    ),
    "a row number": (
        "numbered.csv", "",
        lambda u, i, k, n: f"{n},{u},{i},{stars(u, i)},{seconds(u, k)}",
        "2 3 5",
    ),
    "a rating before the item": (
        "v.csv", "",
        lambda u, i, k, n: f"{u},{stars(u, i)},{i},{seconds(u, k)}",
        "1 3 4",
    ),
    "user ids in the range of times": (
        "weibo.txt", "",
        lambda u, i, k, n: f"{1642600000 + u * 31}\t{10000 + i}\t{stars(u, i)}",
        "1 2 -",
    ),
    "one user": ("me.csv", "", lambda u, i, k, n: f"me,song {n},{seconds(u, k)}", "1 2 3"),
    "one user, with names": (
        "me.csv", "listener,track,played_at", lambda u, i, k, n: f"me,song {n},{when(u, k)}",
        "listener track played_at",
    ),
    "reviews": (
        "reviews.csv", "review_id,product,reviewer,stars,review_date",
        lambda u, i, k, n: f"{900 + n * 3},p{i},r{u},{stars(u, i)},\"{when(u, k, '%b %d, %Y')}\"",
        "reviewer product review_date",
    ),
    "reviews without names": (
        "reviews.csv", "", lambda u, i, k, n: f"{key('r', n)},u{u},i{i},{stars(u, i)}", "2 3 -",
    ),
    "tweets": (
        "tweets.csv", "tweet_id,user_id,hashtag,created_at",
        lambda u, i, k, n: f"{1047943982342 + n * 77777},{u},tag{i},{when(u, k, TWITTER)}",
        "user_id hashtag created_at",
    ),
    "UTC after a space": (
        "events.csv", "event_id,account_id,content_id,occurred",
        lambda u, i, k, n: f"{key('e', n)},{key('u', u)},{key('c', i)},{when(u, k, UTC_FORM)}",
        "account_id content_id occurred",
    ),
    "Ciao, with two ratings": (
        "ciao.txt", "",
        lambda u, i, k, n: f"{u}::{i}::{i % 6 + 1}::{stars(u, i)}::{k % 5 + 1}::{seconds(u, k)}",
        "1 2 6",
    ),
    "beers": (
        "beer.json", "",
        lambda u, i, k, n: {
            "beer/name": f"Beer {i}", "beer/beerId": f"{47900 + i}", "beer/brewerId": f"{i % 5}",
            "beer/style": "Ale", "review/time": f"{seconds(u, k)}", "review/profileName": f"p{u}",
        },
        "review/profileName beer/beerId review/time",
    ),
    "dates of films": (
        "films.csv", "profile;movie_title;release_date;watched",
        lambda u, i, k, n: f"p{u};Film {i};19{50 + i}-05-0{i % 9 + 1};{when(u, k)}",
        "profile movie_title watched",
    ),
    "sessions and users": (
        "v.csv", "", lambda u, i, k, n: f"s{u * 2 + k // 4},u{u},i{i},{seconds(u, k)}",
        SEVERAL + "2 3 4",
    ),
    "three ids": (
        "v.csv", "", lambda u, i, k, n: f"u{u},x{(i * 5 + u) % 11},i{i},{seconds(u, k)}",
        SEVERAL + "1 3 4",
    ),
    "names in an unknown language": (
        "v.csv", "Ware;Wer;Wann", lambda u, i, k, n: f"w{i};x{u};{when(u, k)}",
        SEVERAL + "Wer Ware Wann",
    ),
    "words for missing values": (
        "v.csv", "", lambda u, i, k, n: f"u{u},i{i},{seconds(u, k) if k % 3 < 2 else 'NA'},NULL",
        "1 2 3",
    ),
    "blanks after bars, and marks for inches": (
        "v.txt", "buyer| product| day", lambda u, i, k, n: f'{u}| tube of {i}"| {when(u, k)}',
        "buyer product day",
    ),
    "films alone": (
        "movies.dat", "", lambda u, i, k, n: f"{n + 1}::Toy {n} (1995)::Animation|Children's", NONE,
    ),
}  # fmt: skip


def taken(found: dict[str, dict[str, str | None]]) -> str:
    """Return the columns of user, item and time, by their places where they have no names."""
    columns = (found["columns"][role] for role in ("user", "item", "timestamp"))
    return " ".join((name or "-").removeprefix("column ") for name in columns)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_right_columns_are_proposed(fedrec, tmp_path, name):
    file, header, row, expected = LAYOUTS[name]
    path = tmp_path / file
    path.write_text(content_of(header, row))
    refused = fedrec("data", "describe", path)
    assert refused.code == 2, refused.out
    if expected == NONE:
        assert "As in" not in refused.err and not readings_of(refused.err)
        assert "Their values do not determine the user and the item: " in refused.err
        return
    if expected.startswith(SEVERAL):
        assert "As in" not in refused.err
        readings = readings_of(refused.err)
        assert 2 <= len(readings) <= 4 and {len(rows) for rows in readings.values()} == {3}
        found = [fedrec(*shlex.split(command), "--json").json for command in readings]
        assert {(each["n_rows"], each["n_bad"]) for each in found} == {(96, 0)}
        assert expected.removeprefix(SEVERAL) in map(taken, found)
        return
    worked = fedrec(*proposed_by(refused.err), "--json")
    assert worked.code == 0, worked.err
    assert taken(worked.json) == expected
    assert (worked.json["n_rows"], worked.json["n_bad"]) == (96, 0)


def test_a_folder_of_parquet_parts_gets_a_proposal(fedrec, tmp_path):
    rows = content_of("", lambda u, i, k, n: f"{n} u{u} i{i} {when(u, k)}").split()
    for number, size in enumerate((200, len(rows))):
        columns = {name: rows[at:size:4] for at, name in enumerate(("row", "buyer", "sku", "day"))}
        (tmp_path / "v").mkdir(exist_ok=True)
        parquet.write_table(arrow.table(columns), tmp_path / "v" / f"{number}.parquet")
        del rows[:size]
    worked = fedrec(*proposed_by(fedrec("data", "describe", tmp_path / "v").err), "--json").json
    assert (taken(worked), worked["n_rows"], worked["n_bad"]) == ("buyer sku day", 96, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("n_users", "n_each"), [(2, 2), (6, 5)])
def test_few_rows_propose_nothing_wrong(fedrec, tmp_path, n_users, n_each):
    for name, (file, header, row, expected) in LAYOUTS.items():
        path = tmp_path / file
        path.write_text(content_of(header, row, n_users, n_each))
        refused = fedrec("data", "describe", path)
        if refused.code and "As in" in refused.err:
            worked = fedrec(*proposed_by(refused.err), "--json")
            assert worked.code == 0, name
            assert taken(worked.json) == expected.removeprefix(SEVERAL), (name, refused.err)
