"""
Verify the checksums of a closed trace with nothing of dispatchmon: the example of docs/format.md, which a test runs.
"""

import sys
from pathlib import Path

import pyarrow as pa
import xxhash

path = sys.argv[1]
data = Path(path).read_bytes()
digits_of = []
with pa.ipc.open_file(path) as file:
    for i in range(file.num_record_batches):
        metadata = file.get_batch_with_custom_metadata(i).custom_metadata
        digits_of.append(metadata[b"dispatchmon.checksum"].removeprefix(b"xxh3_64:"))

begin = 0
stream = pa.BufferReader(data)
stream.seek(8)  # behind the magic: from here the file reads as an Arrow stream
pa.ipc.read_message(stream)  # the schema
for i, digits in enumerate(digits_of):
    pa.ipc.read_message(stream)
    end = stream.tell()
    batch = data[begin:end].replace(b"xxh3_64:" + digits, b"xxh3_64:" + b"0" * 16, 1)
    right = xxhash.xxh3_64_hexdigest(batch, seed=i).encode() == digits
    print(f"batch {i}: {'right' if right else 'damaged'}")
    begin = end
