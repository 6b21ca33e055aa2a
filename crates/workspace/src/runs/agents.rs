//! Agents: instructions that the next agent obeys outside of any sandbox, and settings by which it starts servers and hooks.

use super::{RunsRule, rule};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/.cofferdam{.json,.toml,/**}", "rules of cofferdam"),
    rule("**/{.,}mcp{.json,_config.json,-servers.json,_servers.json,_settings.json}", "MCP servers"),
    rule("**/{claude_desktop_config,gemini-extension}.json", "MCP servers"),
    rule("**/{smithery,mcp-agent.config,mcp_agent.config}.y{a,}ml", "MCP servers"),
    rule("**/{claude,agent,agents,gemini,qwen,crush,codex}{.local,.override,}.md", "agent instructions"),
    // Elsewhere these are pages about other things.
    rule("{warp,replit,kimi,copilot}.md", "agent instructions"),
    rule("**/{skill.md,copilot-instructions.md}", "agent instructions"),
    rule("**/*.{prompt,instructions,chatmode,agent}.md", "agent instructions"),
    rule("**/*.mdc", "agent instructions"),
    rule("**/.claude{.json,ignore,-plugin/**,/**}", "agent instructions"),
    rule("**/.cursor{rules,ignore,indexingignore,/**}", "agent instructions"),
    rule("**/.{codex,gemini,copilot,windsurf,continue,cline,clinerules,roo,kilocode,kiro,amp,opencode,goose,junie,augment,factory,qwen,agent,agents,crush}/**", "agent instructions"),
    rule("**/.{amazonq,codeium,tabnine,cody,sourcegraph,aiassistant,openhands,devin,jules,zencoder,firebender,rovodev,plandex,serena,taskmaster,specify,ruler,rulesync,trae,void,pearai,vibe,kimi,letta,pi,bolt,ai,prompts,skills,cagent,deepagents}/**", "agent instructions"),
    rule("**/.{windsurf,cline,roo,kilocode,goose,aider,augment,continue,rovodev}*", "agent instructions"),
    rule("**/{.rules,.aiexclude,.aiignore,.geminiignore}", "agent instructions"),
    rule("**/{opencode,crush,.crush,firebender,rulesync}.json{c,}", "agent instructions"),
    rule("**/.github/{instructions,prompts,agents,chatmodes,skills,hooks}/**", "agent instructions"),
    // Agents that review and merge in a forge.
    rule("**/{.,}{coderabbit,sweep,ellipsis,greptile,korbit,codeant}.{yml,yaml,json}", "agent instructions"),
    rule("**/.pr_agent.toml", "agent instructions"),
];
