-- Set the header by which the next attempt links to the trace of this one; '' leaves the headers as they are.
local function link_attempt(headers, traced)
  if traced == '' then return end
  for i = #headers - 1, 1, -2 do
    if headers[i] == 'headrace-attempt' then
      headers[i + 1] = traced
      return
    end
  end
  headers[#headers + 1], headers[#headers + 2] = 'headrace-attempt', traced
end
