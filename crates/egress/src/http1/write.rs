//! Serialiser for heads. A head that would not parse back as the same head is refused: a value with a line break would
//! become another field.

use super::fields::{HeaderFields, token, trimmed};

/// Names the part that cannot be serialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritable(pub &'static str);

/// Serialises the head of an HTTP/1.1 request.
pub fn write_request(method: &str, target: &str, fields: &HeaderFields) -> Result<Vec<u8>, Unwritable> {
    token(method.as_bytes()).ok_or(Unwritable("the method"))?;
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Unwritable("the target"));
    }
    let mut out = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    write_fields(fields, &mut out)?;
    Ok(out)
}

/// Serialises the head of an HTTP/1.1 response.
pub fn write_response(status: u16, reason: &[u8], fields: &HeaderFields) -> Result<Vec<u8>, Unwritable> {
    if !(100..=999).contains(&status) {
        return Err(Unwritable("the status"));
    }
    if !is_text(reason) {
        return Err(Unwritable("the reason"));
    }
    let mut out = format!("HTTP/1.1 {status} ").into_bytes();
    out.extend(reason);
    out.extend(b"\r\n");
    write_fields(fields, &mut out)?;
    Ok(out)
}

fn write_fields(fields: &HeaderFields, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    for field in &fields.0 {
        token(field.name.as_bytes()).ok_or(Unwritable("the name of a field"))?;
        if !is_text(&field.value) || trimmed(&field.value).len() != field.value.len() {
            return Err(Unwritable("the value of a field"));
        }
        out.extend(field.name.as_bytes());
        out.extend(b": ");
        out.extend(&field.value);
        out.extend(b"\r\n");
    }
    out.extend(b"\r\n");
    Ok(())
}

fn is_text(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f)
}
