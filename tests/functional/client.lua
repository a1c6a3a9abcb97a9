-- A client in Lua, of plain parts: lua-mpack (libmpack's MessagePack-RPC session) and lua-socket.
-- Lists the operators, runs gelu on numbers, prints what came of it. Usage: lua5.1 client.lua SOCKET NUMBER...

local mpack = require('mpack')
local unix = require('socket.unix')

local socket = assert((type(unix) == 'table' and unix.stream or unix)())
assert(socket:connect(arg[1]))

local pack = mpack.Packer()
local pack_binary = mpack.Packer({ is_bin = true })
local session = mpack.Session({ unpack = mpack.Unpacker() })

-- The arguments come packed, because only some strings are binary.
local function call(method, ...)
  local args = { ... }
  local header = string.char(0x90 + #args)
  assert(socket:send(session:request() .. pack(method) .. header .. table.concat(args)))
  while true do
    local byte = assert(socket:receive(1))
    local kind, _, err, result = session:receive(byte, 1)
    if kind == 'response' then
      if err ~= mpack.NIL then
        error(err.code .. ': ' .. err.message, 0)
      end
      return result
    end
  end
end

local hello = call('hello', pack('lua'))
print('protocol ' .. hello.protocol)
for _, op in ipairs(call('op_list')) do
  print('op ' .. op.schema)
end

-- float32, little endian; Lua 5.1 packs no floats, MessagePack does: big endian behind one byte.
local numbers = {}
for i = 2, #arg do
  local packed = pack(tonumber(arg[i]) + 0.0)
  assert(packed:byte(1) == 0xca, arg[i] .. ' is no short float')
  numbers[#numbers + 1] = packed:sub(2):reverse()
end
local data = table.concat(numbers)

call('tensor_new', pack(1), pack('float32'), pack({ #numbers }))
call('tensor_write', pack(1), pack(0), pack_binary(data))
call('forward', pack('gelu'), pack({ 1 }), pack({}), pack({ 2 }))
local result = call('tensor_read', pack(2), pack(0))
for i = 1, #result, 4 do
  print('gelu ' .. mpack.unpack('\202' .. result:sub(i, i + 3):reverse()))
end

local ok, message = pcall(call, 'forward', pack('gleu'), pack({ 1 }), pack({}), pack({ 3 }))
assert(not ok)
print('error ' .. message)
