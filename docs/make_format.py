"""
Write docs/format.md from dispatchmon/schema.py.

    python docs/make_format.py
"""

from __future__ import annotations

from pathlib import Path

from dispatchmon import schema

TARGET = Path(__file__).resolve().parent / "format.md"

INTRODUCTION = f"""\
<!-- made from dispatchmon/schema.py by docs/make_format.py; run `make docs` after a change -->
# The trace format, version {schema.FORMAT_VERSION}

A trace is an [Arrow IPC file](https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format) (also known as
Feather V2), compressed with zstd, with plain columns and no dictionaries.
[reading_traces.md](reading_traces.md) shows how other tools read it.

It has **one row per tensor that an event sees**. An event that sees no tensor has one row whose tensor columns are
null. The rows of one event stand together, and events are in order of execution. An argument that the event writes
has two rows: `input`, the value before the event, and `output`, the value after it.
"""

def table_of_keys(keys: dict[str, str]) -> str:
    """Return a table of the keys of a JSON document."""
    return "\n".join(["| key | meaning |", "|---|---|", *(f"| `{key}` | {meaning} |" for key, meaning in keys.items())])


SNIPPET = (Path(__file__).resolve().parent / "verify_checksums.py").read_text().partition('"""\n\n')[2].strip()

METADATA = f"""\
## Metadata

The schema's metadata has the key `{schema.METADATA_KEY.decode()}`: JSON about the run that is known when the trace is
opened.

{table_of_keys(schema.METADATA)}

The last record batch is empty, and its custom metadata has the key `{schema.CLOSING_KEY.decode()}`: JSON that is known
when the trace is closed. A file without that batch was cut: it holds what was written until then.

{table_of_keys(schema.CLOSING)}

The first record batch is empty too: it makes the metadata readable from the start. A flight recorder (`keep_last`) keeps
its batches in the hidden folder `.NAME.parts` beside the file, each as a trace of its own, and joins them when it is
closed. Of a process that was killed the folder is left: dispatchmon reads it in the place of the file, and any other
reader its parts, in the order of their names.

## Checksums

The custom metadata of every record batch has the key `{schema.CHECKSUM_KEY.decode()}`:
`{schema.CHECKSUM.decode()}` and {schema.DIGITS} hexadecimal digits. They are the 64-bit [XXH3](https://xxhash.com/) of the
bytes of the file from the end of the batch before (for the first one, from the begin of the file, so that the schema and the
metadata are part of it) to the batch's own end, with these {schema.DIGITS} digits as zeros, and with the number of the batch,
from 0, as the seed. dispatchmon verifies each batch before it decodes anything of it. Another reader can:

```python
{SNIPPET}
```

A batch may have at most {schema.MOST_ROWS:,} rows, and {schema.MOST_BYTES:,} bytes once it is decompressed; a reader refuses
more.

In a file that was not closed, what follows the last whole batch is left out. Of the last batch of such a file the checksum
may be missing: it begins with `{schema.UNCHECKED.decode()}` if the process was killed between the two.

## Versions

The version is `major.minor`. A minor version adds columns or keys: readers ignore what they do not know. A major
version changes what is there: an older reader refuses the file with an error that names both versions.

| version | change |
|---|---|
| 1.0 | first version |
| 1.1 | `same_as` in the metadata's `modules` |
| 1.2 | a checksum in every batch; without them, a file of this version is damaged |
"""


def document() -> str:
    """Return the text of docs/format.md."""
    rows = ["| column | type | unit | meaning | null means |", "|---|---|---|---|---|"]
    for column in schema.COLUMNS:
        kind = str(column.type).replace("string", "utf8").replace("double", "float64")
        kind = "list<int64>" if kind.startswith("list") else kind
        cells = (f"`{column.name}`", f"`{kind}`", column.unit or "", column.meaning, column.null or "*never null*")
        rows.append(f"| {' | '.join(cells)} |")
    columns = "\n".join(rows)
    return f"{INTRODUCTION}\n## Columns\n\n{columns}\n\n{METADATA}"


if __name__ == "__main__":
    TARGET.write_text(document())
