//! Rewrites schemas into forms that client generators take, without a change of what a document may hold: types that are joined from
//! several become one object, variants get names, envelopes disappear. Decides nothing about routes.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const PREFIX: &str = "#/components/schemas/";
/// Ending of the name of a type with `protocol_version` beside its own fields.
const ENVELOPE: &str = "Document";
/// Bound on references from one schema to the next.
const MOST_STEPS: usize = 64;

type Schemas = Map<String, Value>;

/// Rewrites all schemas of an OpenAPI document.
pub fn rewrite(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object().cloned() else { return };
    let mut plain: Schemas = schemas
        .iter()
        .map(|(name, schema)| {
            let joined = schema.get("allOf").and_then(|_| object_of(schema, &schemas, MOST_STEPS));
            (name.clone(), joined.unwrap_or_else(|| schema.clone()))
        })
        .collect();
    let names: BTreeSet<String> = plain.keys().cloned().collect();
    for (envelope, name) in names.iter().filter_map(|name| Some((name, content_of(name, &names)?))) {
        let version = plain.remove(envelope).map(|schema| schema["properties"]["protocol_version"].clone());
        if let (Some(version), Some(content)) = (version, plain.get_mut(&name)) {
            content["properties"]["protocol_version"] = version;
        }
    }
    name_variants(&mut plain);
    plain.values_mut().for_each(drop_defaults);
    document["components"]["schemas"] = plain.into();
    each(document, &mut |value| {
        let referred = value.as_object_mut().and_then(|fields| fields.get_mut("$ref"));
        if let Some(Value::String(text)) = referred
            && let Some(name) = text.strip_prefix(PREFIX).and_then(|name| content_of(name, &names))
        {
            *text = format!("{PREFIX}{name}");
        }
    });
}

/// Returns the type that an envelope holds, where that is a type of its own.
fn content_of(envelope: &str, names: &BTreeSet<String>) -> Option<String> {
    envelope.strip_suffix(ENVELOPE).filter(|name| names.contains(*name)).map(str::to_owned)
}

/// Returns one object with the fields of all parts; none where a part is no object. Of variants, only the fields that all have are required,
/// and a field that tells them apart has the words of all.
fn object_of(schema: &Value, schemas: &Schemas, steps: usize) -> Option<Value> {
    let steps = steps.checked_sub(1)?;
    if let Some(name) = schema["$ref"].as_str() {
        return object_of(schemas.get(name.strip_prefix(PREFIX)?)?, schemas, steps);
    }
    let (parts, are_variants) = match (schema.get("allOf"), schema.get("oneOf")) {
        (Some(parts), _) => (parts.as_array()?, false),
        (None, Some(variants)) => (variants.as_array()?, true),
        (None, None) => {
            return (schema["type"] == "object" && schema["properties"].is_object()).then(|| schema.clone());
        }
    };
    let parts: Vec<Value> = parts.iter().map(|part| object_of(part, schemas, steps)).collect::<Option<_>>()?;
    let (mut fields, mut required): (Schemas, Option<BTreeSet<String>>) = (Map::new(), None);
    for part in &parts {
        for (name, field) in part["properties"].as_object()? {
            match fields.get_mut(name).and_then(|known| known.get_mut("enum")?.as_array_mut()) {
                Some(words) => {
                    let more = field["enum"].as_array().into_iter().flatten();
                    let more: Vec<Value> = more.filter(|word| !words.contains(word)).cloned().collect();
                    words.extend(more);
                }
                None => drop(fields.entry(name.clone()).or_insert_with(|| field.clone())),
            }
        }
        let own = part["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned));
        let own: BTreeSet<String> = own.collect();
        required = Some(match required {
            None => own,
            Some(known) if are_variants => known.intersection(&own).cloned().collect(),
            Some(known) => known.union(&own).cloned().collect(),
        });
    }
    let mut object = json!({"type": "object", "properties": fields});
    if let Some(required) = required.filter(|required| !required.is_empty()) {
        object["required"] = json!(required);
    }
    if let Some(description) = schema.get("description") {
        object["description"] = description.clone();
    }
    Some(object)
}

/// Gives variants that are objects names of their own, and joins those that are words.
fn name_variants(schemas: &mut Schemas) {
    let all = schemas.clone();
    for (name, schema) in &all {
        let Some(variants) = schema["oneOf"].as_array() else { continue };
        let is_word = |variant: &&Value| variant["type"] == "string" && variant["enum"].is_array();
        let words: Vec<&Value> = variants.iter().filter(is_word).flat_map(|v| v["enum"].as_array()).flatten().collect();
        let mut named: Vec<Value> = Vec::new();
        if !words.is_empty() {
            named.push(json!({"type": "string", "enum": words}));
        }
        for variant in variants.iter().filter(|variant| !is_word(variant)) {
            let object = variant.get("$ref").is_none().then(|| object_of(variant, &all, MOST_STEPS)).flatten();
            let own = object.as_ref().and_then(|object| Some(format!("{name}{}", variant_name(object)?)));
            match (object, own) {
                (Some(object), Some(own)) if !schemas.contains_key(&own) => {
                    named.push(json!({"$ref": format!("{PREFIX}{own}")}));
                    schemas.insert(own, object);
                }
                _ => named.push(variant.clone()),
            }
        }
        if let Some(schema) = schemas.get_mut(name) {
            schema["oneOf"] = named.into();
        }
    }
}

/// Names a variant by the word that tells it from others, or by its first required field.
fn variant_name(object: &Value) -> Option<String> {
    let fields = object["properties"].as_object()?;
    let tag = fields.values().find_map(|field| match field["enum"].as_array()?.as_slice() {
        [word] => word.as_str(),
        _ => None,
    });
    let word = tag.or_else(|| object["required"].as_array()?.first()?.as_str())?;
    let capital = |part: &str| part.chars().take(1).flat_map(char::to_uppercase).chain(part.chars().skip(1)).collect();
    Some(word.split('_').map(|part| -> String { capital(part) }).collect())
}

/// Drops defaults of fields: generators take a field with one for a required field.
fn drop_defaults(schema: &mut Value) {
    each(schema, &mut |value| {
        let fields = value.as_object_mut().and_then(|schema| schema.get_mut("properties")?.as_object_mut());
        for field in fields.into_iter().flat_map(Map::values_mut) {
            field.as_object_mut().map(|field| field.remove("default"));
        }
    });
}

/// Calls a function on a value and on all that is in it.
fn each(value: &mut Value, act: &mut impl FnMut(&mut Value)) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        act(value);
        match value {
            Value::Object(fields) => open.extend(fields.values_mut()),
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_types_are_one_object_and_variants_have_names() {
        let reference = |name: &str| json!({"$ref": format!("{PREFIX}{name}")});
        let word = |word: &str| json!({"type": "string", "enum": [word]});
        let version = json!({"type": "object", "properties": {"protocol_version": {"type": "integer"}}, "required": ["protocol_version"]});
        let mut document = json!({"answer": reference("PartDocument"), "components": {"schemas": {
            "Class": {"oneOf": [
                {"type": "object", "properties": {"class": word("plain")}, "required": ["class"]},
                {"type": "object", "properties": {"class": word("never_lands"), "why": {"type": "string"}}, "required": ["class", "why"]},
            ]},
            "Part": {"allOf": [reference("Class"), {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}, "required": ["size"]}]},
            "PartDocument": {"allOf": [reference("Part"), version]},
            "Kind": {"oneOf": [word("a"), word("b"), {"type": "object", "properties": {"renamed": {"type": "object"}}, "required": ["renamed"]}]},
        }}});
        rewrite(&mut document);
        let schemas = &document["components"]["schemas"];
        assert_eq!(document["answer"], reference("Part"));
        assert_eq!(schemas["Part"]["properties"]["class"]["enum"], json!(["plain", "never_lands"]));
        assert_eq!(schemas["Part"]["required"], json!(["class", "size"]), "{schemas:#}");
        assert_eq!(schemas["Part"]["properties"]["size"], json!({"type": "integer"}));
        assert!(schemas["Part"]["properties"]["protocol_version"].is_object() && schemas["PartDocument"].is_null());
        assert_eq!(schemas["Class"]["oneOf"], json!([reference("ClassPlain"), reference("ClassNeverLands")]));
        assert_eq!(schemas["Kind"]["oneOf"], json!([{"type": "string", "enum": ["a", "b"]}, reference("KindRenamed")]));
    }
}
