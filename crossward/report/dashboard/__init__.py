"""The dashboard: runs and studies below one folder, live in the browser. It reads run directories, writes nothing."""
