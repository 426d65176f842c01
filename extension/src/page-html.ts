import { randomBytes } from "node:crypto";
import { escapeHtml } from "../../runner/src/telemetry/curve.ts";

/** The whole document of a page. The toolkit takes the nonce for its own styles from the `meta`. */
export function pageHtml({ title, script, style }: Record<"title" | "script" | "style", string>): string {
  const nonce = randomBytes(18).toString("base64url");
  const policy = `default-src 'none'; img-src data:; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta property="csp-nonce" content="${nonce}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)}</title>
<link rel="stylesheet" nonce="${nonce}" href="${style}">
</head>
<body><main id="main"></main><script nonce="${nonce}" src="${script}"></script></body>
</html>
`;
}
