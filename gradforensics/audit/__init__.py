"""The audit of training data: files of samples to rows of the table `data`. It measures and knows no threshold."""

from gradforensics.audit.blocks import UnreadError
from gradforensics.audit.columnar import columns_of_table
from gradforensics.audit.files import DataFile
from gradforensics.audit.heads import columns_of_head, is_training_data
from gradforensics.audit.known import Known
from gradforensics.audit.survey import Audited, audit, rows_of

__all__ = [
    "Audited",
    "DataFile",
    "Known",
    "UnreadError",
    "audit",
    "columns_of_head",
    "columns_of_table",
    "is_training_data",
    "rows_of",
]
