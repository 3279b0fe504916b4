"""Token forcing: is every emitted token what the exact weights would have said (section 3.3)?"""
