//! TCP between nodes: control frames and bulk bytes.
