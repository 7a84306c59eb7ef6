"""What a document is: its media type, and the way its text is got at.

The bytes decide where they have a signature; the name decides between kinds of text.
"""

from __future__ import annotations

import posixpath
from enum import StrEnum

__all__ = ["Kind", "recognise"]


class Kind(StrEnum):
    """How text is made of a document."""

    TEXT = "text"
    HTML = "html"
    PDF = "pdf"
    OFFICE = "office"
    NONE = "none"
    """No text can be made of it."""


_OFFICE = {
    ".doc": "application/msword",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".epub": "application/epub+zip",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".ppt": "application/vnd.ms-powerpoint",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".rtf": "application/rtf",
    ".xls": "application/vnd.ms-excel",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

_HTML = {".htm": "text/html", ".html": "text/html", ".xhtml": "application/xhtml+xml"}

_TEXT = {
    ".bash": "text/x-shellscript",
    ".c": "text/x-c",
    ".cc": "text/x-c++",
    ".cfg": "text/plain",
    ".conf": "text/plain",
    ".cpp": "text/x-c++",
    ".cs": "text/x-csharp",
    ".css": "text/css",
    ".csv": "text/csv",
    ".go": "text/x-go",
    ".h": "text/x-c",
    ".hpp": "text/x-c++",
    ".ini": "text/plain",
    ".ipynb": "application/json",
    ".java": "text/x-java",
    ".js": "text/javascript",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".jsx": "text/javascript",
    ".kt": "text/x-kotlin",
    ".log": "text/plain",
    ".lua": "text/x-lua",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".mjs": "text/javascript",
    ".ndjson": "application/x-ndjson",
    ".php": "text/x-php",
    ".pl": "text/x-perl",
    ".py": "text/x-python",
    ".pyi": "text/x-python",
    ".r": "text/x-r",
    ".rb": "text/x-ruby",
    ".rs": "text/x-rust",
    ".rst": "text/x-rst",
    ".scala": "text/x-scala",
    ".sh": "text/x-shellscript",
    ".sql": "application/sql",
    ".svg": "image/svg+xml",
    ".swift": "text/x-swift",
    ".tex": "text/x-tex",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",
    ".tsv": "text/tab-separated-values",
    ".tsx": "text/x-typescript",
    ".txt": "text/plain",
    ".vue": "text/x-vue",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}

# Signatures of what holds no text that could be read here.
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"OggS", "application/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"(\xb5/\xfd", "application/zstd"),
    (b"7z\xbc\xaf'\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-elf"),
    (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"wOF2", "font/woff2"),
    (b"PAR1", "application/vnd.apache.parquet"),
)

_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PDF = b"%PDF-"
_PDF_WITHIN = 1024
"""A PDF reader accepts so many bytes before the signature."""


def recognise(data: bytes, source_id: str) -> tuple[str, Kind]:
    """The media type of a document and how to get its text."""
    extension = posixpath.splitext(source_id)[1].lower()
    if data.startswith(_PDF) or (extension == ".pdf" and _PDF in data[:_PDF_WITHIN]):
        return "application/pdf", Kind.PDF
    if data.startswith(_ZIP):
        return _recognise_zip(data, extension)
    if data.startswith(_OLE):
        media_type = _OFFICE.get(extension, "application/x-ole-storage")
        return media_type, Kind.OFFICE if extension in _OFFICE else Kind.NONE
    if data.startswith(b"{\\rtf"):
        return _OFFICE[".rtf"], Kind.OFFICE
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type, Kind.NONE
    if data.startswith(b"RIFF") and data[8:12] in (b"WEBP", b"WAVE", b"AVI "):
        return "application/x-riff", Kind.NONE
    if extension in _HTML:
        return _HTML[extension], Kind.HTML
    if extension in _TEXT:
        return _TEXT[extension], Kind.TEXT
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "text/html", Kind.HTML
    return "text/plain", Kind.TEXT


def _recognise_zip(data: bytes, extension: str) -> tuple[str, Kind]:
    """Office formats are ZIP archives; one without its extension shows by what is inside."""
    if extension in _OFFICE:
        return _OFFICE[extension], Kind.OFFICE
    # OpenDocument and EPUB begin with an uncompressed member that holds the media type.
    if data[30:38] == b"mimetype":
        for media_type in _OFFICE.values():
            if data[38:].startswith(media_type.encode()):
                return media_type, Kind.OFFICE
    for folder, extension in ((b"word/", ".docx"), (b"xl/", ".xlsx"), (b"ppt/", ".pptx")):
        if b"[Content_Types].xml" in data and folder in data:
            return _OFFICE[extension], Kind.OFFICE
    return "application/zip", Kind.NONE
