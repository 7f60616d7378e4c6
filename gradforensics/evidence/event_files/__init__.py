"""Event files of TensorBoard: records with checksums around protocol buffers, read as columns.

framing: bytes to records, with a way back after damage; protos: one record at a time; templates: many alike at once;
columns: what was read, as the columns of a log; summaries: histograms and hyperparameters; texts: settings in texts.

The formats are those of TensorFlow's core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto
and core/framework/tensor.proto, and of TensorBoard's plugins/hparams/plugin_data.proto.
"""
