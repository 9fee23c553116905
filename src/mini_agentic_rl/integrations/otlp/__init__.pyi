from .attempt_trace import AttemptFacts as AttemptFacts
from .attempt_trace import ExportedSpan as ExportedSpan
from .attempt_trace import attempt_trace as attempt_trace
from .span_exporter import ExportingStore as ExportingStore
from .span_exporter import SpanExporter as SpanExporter
from .span_exporter import exported as exported
from .span_exporter import receiver_url as receiver_url
