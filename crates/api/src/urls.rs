//! Tickets and signed URLs: requests of browsers that can send no header.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that a page is about to send without a header.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketCreate {
    /// Path of the request, such as `/v1/runs/{run}/attach`; its query may be any.
    pub path: String,
}

/// A ticket for one GET request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TicketCreated {
    /// Value of the parameter `cofferdam_ticket`.
    pub ticket: String,
    pub path: String,
    /// Time until which the request can begin.
    pub expires_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum UrlMethod {
    #[serde(rename = "GET")]
    Get,
    #[serde(rename = "PUT")]
    Put,
}

impl UrlMethod {
    pub fn name(self) -> &'static str {
        match self {
            UrlMethod::Get => "GET",
            UrlMethod::Put => "PUT",
        }
    }
}

/// A URL to sign, for an upload or a download.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UrlSign {
    pub method: UrlMethod,
    /// Path with its query: `/v1/sandboxes/{id}/files/content?path=…`, `…/files/archive?path=…`, or `…/export` for GET.
    pub url: String,
    /// Good for so long [default: 900000].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1000, maximum = 604_800_000)]
    pub ttl_ms: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UrlSigned {
    pub method: UrlMethod,
    /// Path with its query and the signature.
    pub url: String,
    pub expires_ms: u64,
}
