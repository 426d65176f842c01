-- Opens the recipe that MOLT_RECIPE names, starts the server of MOLT_SERVER on it, and prints what the editor got.
local lsp = vim.lsp

local function fail(what)
  io.stdout:write(vim.json.encode({ error = what }))
  vim.cmd("qa!")
end

local ok, problem = pcall(function()
  vim.cmd("edit " .. vim.fn.fnameescape(vim.env.MOLT_RECIPE))
  local id = lsp.start_client({
    name = "molt",
    cmd = { vim.env.MOLT_NODE, vim.env.MOLT_SERVER, "--stdio" },
    root_dir = vim.fn.fnamemodify(vim.env.MOLT_RECIPE, ":h"),
  })
  lsp.buf_attach_client(0, id)
  local deadline = tonumber(vim.env.MOLT_DEADLINE_MS)
  local function wait(what, condition)
    if not vim.wait(deadline, condition, 20) then error("waited for " .. what) end
  end
  local function request(method, line, character)
    local params = {
      textDocument = lsp.util.make_text_document_params(0),
      position = { line = line, character = character },
    }
    local answers, why = lsp.buf_request_sync(0, method, params, deadline)
    if not answers then error(method .. ": " .. why) end
    return answers[id].result
  end

  wait("diagnostics", function() return #vim.diagnostic.get(0) > 0 end)
  local result = { diagnostics = {} }
  for _, one in ipairs(vim.diagnostic.get(0)) do
    table.insert(result.diagnostics, { line = one.lnum, column = one.col, message = one.message })
  end
  -- The user repairs the key and begins another.
  vim.api.nvim_buf_set_lines(0, 4, 5, false, { "rollout:", "  batch_size: 4", "  temp" })
  wait("the diagnostics to go", function() return #vim.diagnostic.get(0) == 1 end)
  result.hover = request("textDocument/hover", 5, 4).contents.value
  result.completion = {}
  for _, item in ipairs(request("textDocument/completion", 6, 6)) do table.insert(result.completion, item.label) end
  result.definition = request("textDocument/definition", 3, 25)[1].uri
  -- What it makes of the edits: the formatted text of the buffer.
  vim.api.nvim_buf_set_lines(0, 6, 7, false, { "  temperature:   1" })
  local edits = lsp.buf_request_sync(0, "textDocument/formatting", lsp.util.make_formatting_params({}), deadline)
  lsp.util.apply_text_edits(edits[id].result, 0, "utf-16")
  result.text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\n")
  io.stdout:write(vim.json.encode(result))
end)
if not ok then fail(problem) end
vim.cmd("qa!")
